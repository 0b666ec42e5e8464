package rows

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/dflash-runner/dflash-runner/runner"
)

// stepMagic begins the canonical bytes, and carries their version.
const stepMagic = "dflash-runner step 1\n"

// Step is a step plan with everything that its rows hold.
type Step struct {
	Plan runner.StepPlan
	Rows []runner.RowPlan // those named in Plan.Rows, by rising number
}

// AppendStep appends the canonical bytes of a step plan: what the chain is
// computed over, and what nothing else may be encoded as. Integers are
// little-endian and of fixed width, lists start with their length, the
// learning rate is its bits.
func AppendStep(b []byte, s Step) []byte {
	le := binary.LittleEndian
	b = append(b, stepMagic...)
	b = le.AppendUint64(b, uint64(s.Plan.Step))
	b = le.AppendUint32(b, s.Plan.Epoch)
	b = le.AppendUint64(b, math.Float64bits(s.Plan.LR))
	b = le.AppendUint32(b, uint32(len(s.Plan.Rows)))
	for _, rank := range s.Plan.Rows {
		b = le.AppendUint32(b, uint32(len(rank)))
		for _, row := range rank {
			b = le.AppendUint64(b, uint64(row))
		}
	}
	b = le.AppendUint32(b, uint32(len(s.Rows)))
	for _, r := range s.Rows {
		b = le.AppendUint64(b, uint64(r.Row))
		b = le.AppendUint32(b, r.Epoch)
		b = le.AppendUint32(b, r.Bucket)
		b = le.AppendUint32(b, uint32(len(r.Pieces)))
		for _, p := range r.Pieces {
			for _, v := range [...]uint32{uint32(p.Sample), p.Draw, p.Start, p.Tokens, p.Anchors} {
				b = le.AppendUint32(b, v)
			}
		}
	}
	return b
}

// Chain gives chain(n) from chain(n-1) and step plan n (README, Steps).
// The chain before the first step is all zeros.
func Chain(prev runner.Chain, s Step) runner.Chain {
	return sha256.Sum256(AppendStep(prev[:len(prev):len(prev)], s))
}

// Without gives the step plan in which row is weightless and no other row
// moves (README, Steps). ok is false when the plan does not name it.
func (s Step) Without(row runner.Row) (out Step, ok bool) {
	out = Step{Plan: s.Plan}
	out.Plan.Rows = make([][]runner.Row, len(s.Plan.Rows))
	for i, rank := range s.Plan.Rows {
		out.Plan.Rows[i] = make([]runner.Row, len(rank))
		for j, r := range rank {
			if r == row {
				ok = true
				continue
			}
			out.Plan.Rows[i][j] = r
		}
	}
	for _, r := range s.Rows {
		if r.Row != row {
			out.Rows = append(out.Rows, r)
		}
	}
	return out, ok && row != 0
}

// ParseStep reads what AppendStep appended and gives the rest of b. Bytes that
// AppendStep would not have written are refused.
func ParseStep(b []byte) (s Step, rest []byte, err error) {
	r := reader{b: b}
	if string(r.take(uint64(len(stepMagic)))) != stepMagic {
		return s, nil, runner.Errorf(runner.Invalid, "read step plan: want %q first", stepMagic)
	}
	s.Plan = runner.StepPlan{Step: runner.Step(r.u64()), Epoch: r.u32(), LR: math.Float64frombits(r.u64())}
	s.Plan.Rows = make([][]runner.Row, r.count(4))
	for i := range s.Plan.Rows {
		s.Plan.Rows[i] = make([]runner.Row, r.count(8))
		for j := range s.Plan.Rows[i] {
			s.Plan.Rows[i][j] = runner.Row(r.u64())
		}
	}
	if n := r.count(20); n > 0 {
		s.Rows = make([]runner.RowPlan, n)
	}
	for i := range s.Rows {
		s.Rows[i] = runner.RowPlan{Row: runner.Row(r.u64()), Epoch: r.u32(), Bucket: r.u32()}
		s.Rows[i].Pieces = make([]runner.Piece, r.count(20))
		for j := range s.Rows[i].Pieces {
			s.Rows[i].Pieces[j] = runner.Piece{Sample: runner.Sample(r.u32()), Draw: r.u32(), Start: r.u32(), Tokens: r.u32(), Anchors: r.u32()}
		}
	}
	if r.short {
		return Step{}, nil, runner.Errorf(runner.Invalid, "read step plan: %d bytes end within it", len(b))
	}
	return s, r.b, nil
}

// reader takes values off a byte slice; short is set once it did not hold one.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.short, r.b = true, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads a list's length and refuses one that the bytes left cannot hold.
func (r *reader) count(size uint64) uint32 {
	n := r.u32()
	if uint64(n)*size > uint64(len(r.b)) {
		r.short, r.b = true, nil
		return 0
	}
	return n
}
