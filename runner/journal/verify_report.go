package journal

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
)

// settled counts, for each epoch, how often each draw of each sample was
// settled.
type settled struct {
	draws  uint32
	epochs map[uint32][]uint8
}

// row settles a row's pieces; the second time for any of them is an error.
func (s *settled) row(r runner.RowPlan, samples int) error {
	e := s.epochs[r.Epoch]
	if e == nil {
		e = make([]uint8, samples*int(s.draws))
		s.epochs[r.Epoch] = e
	}
	for _, p := range r.Pieces {
		i := int(p.Sample)*int(s.draws) + int(p.Draw)
		if int(p.Sample) >= samples || p.Draw >= s.draws {
			return fmt.Errorf("row %d: sample %d draw %d is not in the index", r.Row, p.Sample, p.Draw)
		}
		if e[i]++; e[i] > 1 {
			return fmt.Errorf("row %d: sample %d draw %d of epoch %d is settled twice", r.Row, p.Sample, p.Draw, r.Epoch)
		}
	}
	return nil
}

// report settles the surviving lineage and sums up.
func (v *verifier) report(s *Scanned) (Report, error) {
	r := Report{
		Run: s.Run, Segments: s.Segments, Records: s.Records, Lives: v.lives, Lineage: v.lineage, Planned: v.plans.last(), Committed: v.committed,
		Excluded: v.nExclude, Repeated: v.repeated, Checkpoints: v.published, Ended: !v.alive, Torn: s.Torn, Chain: fmt.Sprintf("%x", v.plans.chain(v.committed)),
	}
	all := settled{draws: v.facts.Config.Draws, epochs: map[uint32][]uint8{}}
	for n := runner.Step(1); n <= v.committed; n++ {
		for _, row := range v.plans.of(n).Rows {
			if err := all.row(row, len(v.facts.Index.Samples)); err != nil {
				return r, runner.Errorf(runner.Invalid, "verify journal: step %d: %w", n, err)
			}
			r.Rows++
			r.Samples += uint64(len(row.Pieces))
		}
	}
	for _, row := range v.skipped {
		if err := all.row(row, len(v.facts.Index.Samples)); err != nil {
			return r, runner.Errorf(runner.Invalid, "verify journal: %w", err)
		}
		r.Skipped += uint64(len(row.Pieces))
	}
	if err := v.epochs(&r, all); err != nil {
		return r, err
	}
	if r.Torn != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s ends in %d bytes that a crash left (%s); a resume cuts them", r.Torn.File, r.Torn.Bytes, r.Torn.Reason))
	}
	return r, nil
}

// epochs demands that every epoch before the newest is settled whole.
func (v *verifier) epochs(r *Report, all settled) error {
	newest := uint32(0)
	if p := v.plans.of(v.committed); p != nil {
		newest = p.Plan.Epoch
	}
	for e := uint32(1); e <= newest; e++ {
		open := uint64(0)
		for _, s := range v.planner.Plannable() {
			for d := range all.draws {
				if counts := all.epochs[e]; counts == nil || counts[int(s)*int(all.draws)+int(d)] != 1 {
					open++
				}
			}
		}
		if open > 0 && e < newest {
			return runner.Errorf(runner.Invalid, "verify journal: epoch %d: want every sample settled before epoch %d, %d are not", e, newest, open)
		}
		if open == 0 {
			r.Epochs++
		}
	}
	return nil
}
