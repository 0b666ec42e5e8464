package rows

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/dflash-runner/dflash-runner/runner"
)

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
	b = append(b, "dflash-runner step 1\n"...)
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

// Chain gives chain(n) from chain(n-1) and step plan n (design.md 7, rule 1).
// The chain before the first step is all zeros.
func Chain(prev runner.Chain, s Step) runner.Chain {
	return sha256.Sum256(AppendStep(prev[:len(prev):len(prev)], s))
}

// Without gives the step plan in which row is weightless and no other row
// moves (design.md 7, rule 9). ok is false when the plan does not name it.
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
