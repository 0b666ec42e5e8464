package journal

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// Facts is what a journal is verified against.
type Facts struct {
	Index        *rows.Index
	Config       rows.Config
	BitIdentical bool           // the manifest says that a step trained again has equal bits
	Manifest     *runner.Digest // of the manifest that is there; nil is not compared
}

// Report is what a journal that verified holds.
type Report struct {
	Run         RunID          `json:"-"`
	Segments    int            `json:"segments"`
	Records     uint64         `json:"records"`
	Lives       int            `json:"lives"`
	Lineage     runner.Lineage `json:"lineage"`
	Planned     runner.Step    `json:"planned"`
	Committed   runner.Step    `json:"committed"`
	Epochs      uint32         `json:"epochs"` // settled whole
	Rows        uint64         `json:"rows"`
	Samples     uint64         `json:"samples"` // draws committed
	Skipped     uint64         `json:"skipped"` // draws settled without training
	Excluded    uint64         `json:"excluded"`
	Repeated    uint64         `json:"repeated"` // steps committed in more than one lineage
	Checkpoints int            `json:"checkpoints"`
	Ended       bool           `json:"ended"`
	Chain       string         `json:"chain"`
	Torn        *Torn          `json:"torn,omitempty"`
	Warnings    []string       `json:"warnings,omitempty"`
}

// Verify proves from the journal and the data index alone that the lineage is
// contiguous, that every chain and every step plan follows from the journaled
// order of samples, and that every sample, and every draw of it, of an epoch
// is settled exactly once in the surviving lineage. Its error names the file
// and the offset of the first record that does not hold. A journal that lacks
// its last records is one of a run that was killed before they were written,
// and verifies.
func Verify(dir string, f Facts) (Report, error) {
	planner, err := rows.NewPlanner(f.Index, f.Config)
	if err != nil {
		return Report{}, err
	}
	v := &verifier{facts: f, planner: planner, excluded: map[runner.Sample]string{}, first: map[runner.Step]runner.CommitRecord{}}
	for _, e := range planner.Excluded() {
		v.excluded[e.Sample] = e.Reason
	}
	s, err := Scan(dir, func(e Entry) error {
		if err := v.record(e.Record); err != nil {
			return damaged(e.File, int(e.Offset), fmt.Errorf("record %d (%s): %w", e.Number, runner.RecordType(e.Record), err))
		}
		return nil
	})
	if err != nil {
		return Report{}, err
	}
	if t := s.Torn; t != nil && t.Whole {
		return Report{}, damaged(t.File, int(t.Offset), fmt.Errorf("record %d: %s: it was changed, or a power cut tore it, in which case a resume cuts it", s.Records+1, t.Reason))
	}
	if s.Records == 0 {
		return Report{}, runner.Errorf(runner.Invalid, "verify journal %s: want records, got none", dir)
	}
	return v.report(s)
}

// verifier checks records one by one against what they must be.
type verifier struct {
	facts   Facts
	planner *rows.Planner
	plans   plans

	alive    bool // between a start and an end
	lives    int
	lineage  runner.Lineage
	restored bool                     // in this life; a resumed life commits nothing before
	excluded map[runner.Sample]string // still to be settled
	nExclude uint64
	arranged bool

	committed runner.Step
	commits   []runner.CommitRecord               // surviving
	first     map[runner.Step]runner.CommitRecord // of a step that was undone
	skips     []runner.Row                        // of the open step, no revised plan yet
	replan    runner.Step                         // next plan to be written anew; 0: none
	skipped   []runner.RowPlan
	repeated  uint64
	published int
}

// record takes the next one. A life's first record is its start; nothing
// follows its end but the next start.
func (v *verifier) record(r runner.Record) error {
	if _, ok := r.(runner.StartRecord); !ok && !v.alive {
		return fmt.Errorf("want a start")
	}
	if err := v.pending(r); err != nil {
		return err
	}
	switch r := r.(type) {
	case runner.StartRecord:
		return v.start(r)
	case runner.ExcludeRecord:
		return v.exclude(r)
	case runner.ArrangeRecord:
		return v.arrange(r)
	case runner.PlanRecord:
		return v.plan(r)
	case runner.RestoreRecord:
		return v.restore(r)
	case runner.CommitRecord:
		return v.commit(r)
	case runner.SkipRecord:
		return v.skip(r)
	case runner.CheckpointRecord:
		return v.checkpoint(r)
	case runner.EvaluationRecord:
		if r.Step > v.committed {
			return fmt.Errorf("want step %d at most, got %d", v.committed, r.Step)
		}
		return nil
	case runner.EndRecord:
		if r.Step != v.committed {
			return fmt.Errorf("want step %d, the last committed, got %d", v.committed, r.Step)
		}
		v.alive = false
		return nil
	}
	return fmt.Errorf("unknown record")
}

// pending lets nothing come between a skip and the plans that it changes; only
// a crash may cut them off.
func (v *verifier) pending(r runner.Record) error {
	_, plan := r.(runner.PlanRecord)
	_, skip := r.(runner.SkipRecord)
	_, crash := r.(runner.StartRecord)
	switch {
	case crash, v.replan == 0 && len(v.skips) == 0, plan, skip && v.replan == 0:
	default:
		return fmt.Errorf("want the plan of step %d, which a skip changed", max(v.replan, v.committed+1))
	}
	if plan && v.replan == 0 && len(v.skips) > 0 {
		v.replan = v.committed + 1
	}
	return nil
}

func (v *verifier) start(r runner.StartRecord) error {
	if r.Lineage != v.lineage {
		return fmt.Errorf("want lineage %d, got %d", v.lineage, r.Lineage)
	}
	if m := v.facts.Manifest; m != nil && *m != r.Manifest {
		return fmt.Errorf("want manifest %x, got %x", m[:6], r.Manifest[:6])
	}
	v.lineage = max(v.lineage, 1)
	v.alive, v.restored = true, v.lives == 0
	v.lives++
	v.skips, v.replan = nil, 0 // a skip whose plan a crash swallowed did not happen
	return nil
}

func (v *verifier) exclude(r runner.ExcludeRecord) error {
	if v.arranged {
		return fmt.Errorf("want it before samples are arranged")
	}
	for _, s := range r.Samples {
		if why, ok := v.excluded[s]; !ok || why != r.Reason {
			return fmt.Errorf("sample %d is not to be excluded, or was already, for %q", s, r.Reason)
		}
		delete(v.excluded, s)
		v.nExclude++
	}
	return nil
}

func (v *verifier) arrange(r runner.ArrangeRecord) error {
	if len(v.excluded) > 0 {
		return fmt.Errorf("want %d more samples excluded first", len(v.excluded))
	}
	v.arranged = true
	return v.planner.Feed(r.Epoch, r.Samples)
}

func (v *verifier) restore(r runner.RestoreRecord) error {
	switch {
	case r.Lineage != v.lineage+1:
		return fmt.Errorf("want lineage %d, got %d", v.lineage+1, r.Lineage)
	case r.Step > v.committed:
		return fmt.Errorf("want step %d at most, the last committed, got %d", v.committed, r.Step)
	case r.Chain != v.plans.chain(r.Step):
		return fmt.Errorf("want chain %x of step %d, got %x", v.plans.chain(r.Step), r.Step, r.Chain)
	}
	for _, c := range v.commits[r.Step:] {
		if _, ok := v.first[c.Step]; !ok {
			v.first[c.Step] = c
		}
	}
	v.commits = v.commits[:r.Step]
	v.lineage, v.committed, v.restored = r.Lineage, r.Step, true
	return nil
}

func (v *verifier) checkpoint(r runner.CheckpointRecord) error {
	switch {
	case r.Step > v.committed:
		return fmt.Errorf("want step %d at most, got %d", v.committed, r.Step)
	case r.Chain != v.plans.chain(r.Step):
		return fmt.Errorf("want chain %x of step %d, got %x", v.plans.chain(r.Step), r.Step, r.Chain)
	case r.Image == runner.Digest{} || r.Name == "":
		return fmt.Errorf("want a name and an image's digest")
	}
	v.published++
	return nil
}
