package journal

import (
	"bytes"
	"math"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// decode reads a payload. Whatever encode would not have written is refused.
func decode(kind uint8, b []byte) (runner.Record, error) {
	d := decoder{b: b}
	r, err := d.record(kind)
	if err != nil {
		return nil, err
	}
	if d.short || len(d.b) > 0 {
		return nil, runner.Errorf(runner.Invalid, "read record of type %d: want its %d bytes to hold it exactly", kind, len(b))
	}
	// NaN bits, booleans and list lengths included: the form must be the one.
	if again, _ := encode(nil, r); !bytes.Equal(again, b) {
		return nil, runner.Errorf(runner.Invalid, "read record of type %d: not in its canonical form", kind)
	}
	return r, nil
}

// decoder takes values off a payload; short is set once it did not hold one.
type decoder struct {
	b     []byte
	short bool
}

func (d *decoder) record(kind uint8) (runner.Record, error) {
	switch kind {
	case typeStart:
		return runner.StartRecord{Manifest: d.digest(), Lineage: runner.Lineage(d.u32())}, nil
	case typeExclude:
		return runner.ExcludeRecord{Samples: d.samples(), Reason: d.text()}, nil
	case typeArrange:
		return runner.ArrangeRecord{Epoch: d.u32(), Samples: d.samples()}, nil
	case typePlan:
		return d.plan()
	case typeRestore:
		return runner.RestoreRecord{Step: d.step(), Lineage: runner.Lineage(d.u32()), Chain: runner.Chain(d.digest())}, nil
	case typeCommit:
		return d.commit(), nil
	case typeSkip:
		r := runner.SkipRecord{Step: d.step(), Lineage: runner.Lineage(d.u32()), Row: runner.Row(d.u64()), Samples: d.samples()}
		for range d.count(4) {
			r.Draws = append(r.Draws, d.u32())
		}
		r.Reason = d.text()
		return r, nil
	case typeCheckpoint:
		return runner.CheckpointRecord{Step: d.step(), Name: d.text(), Image: d.digest(), Chain: runner.Chain(d.digest()), Best: d.bool()}, nil
	case typeEvaluation:
		return d.evaluation(), nil
	case typeEnd:
		return runner.EndRecord{Code: int(int64(d.u64())), Reason: d.text(), Step: d.step()}, nil
	}
	return nil, runner.Errorf(runner.Invalid, "read record: unknown type %d", kind).
		WithHint("the journal may have been written by a newer build")
}

func (d *decoder) plan() (runner.Record, error) {
	chain := runner.Chain(d.digest())
	s, rest, err := rows.ParseStep(d.b)
	if err != nil {
		return nil, err
	}
	d.b = rest
	return runner.PlanRecord{Plan: s.Plan, Rows: s.Rows, Chain: chain}, nil
}

func (d *decoder) commit() runner.CommitRecord {
	r := runner.CommitRecord{Step: d.step(), Lineage: runner.Lineage(d.u32())}
	for range d.count(24) {
		r.Rows = append(r.Rows, runner.RowLoss{Row: runner.Row(d.u64()), Numerator: d.float(), Denominator: d.float()})
	}
	r.Weight, r.Norm, r.Chain = d.u32(), d.u32(), runner.Chain(d.digest())
	return r
}

func (d *decoder) evaluation() runner.EvaluationRecord {
	return runner.EvaluationRecord{
		Step: d.step(), What: d.text(), Prompts: d.u32(), Tokens: d.u64(), Forwards: d.u64(), BusyUS: d.u64(), Lossless: d.bool(),
		Numerator: d.float(), Denominator: d.float(), NonLoopingTokens: d.u64(), NonLoopingForwards: d.u64(), Looping: d.u32(),
	}
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.short, d.b = true, nil
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) u32() uint32 {
	if b := d.take(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.take(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

func (d *decoder) step() runner.Step { return runner.Step(d.u64()) }

func (d *decoder) float() float64 { return math.Float64frombits(d.u64()) }

func (d *decoder) bool() bool {
	b := d.take(1)
	return b != nil && b[0] != 0
}

func (d *decoder) digest() (out runner.Digest) {
	copy(out[:], d.take(32))
	return out
}

func (d *decoder) text() string { return string(d.take(uint64(d.u32()))) }

// count reads a list's length and refuses one that the bytes left cannot hold.
func (d *decoder) count(size uint64) uint32 {
	n := d.u32()
	if uint64(n)*size > uint64(len(d.b)) {
		d.short, d.b = true, nil
		return 0
	}
	return n
}

func (d *decoder) samples() []runner.Sample {
	n := d.count(4)
	if n == 0 {
		return nil
	}
	out := make([]runner.Sample, n)
	for i := range out {
		out[i] = runner.Sample(d.u32())
	}
	return out
}
