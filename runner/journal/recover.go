package journal

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// State is what recovery needs of a journal.
type State struct {
	Manifest    runner.Digest  // of the newest start
	Lineage     runner.Lineage // the newest; 1 where nothing was restored yet
	Excluded    bool           // samples were settled as never planned
	Arranged    []runner.ArrangeRecord
	Plans       []runner.PlanRecord // the newest of each step from 1 on, chains recomputed
	Committed   runner.Step         // of the surviving lineage
	Commits     []runner.CommitRecord
	Checkpoints []runner.CheckpointRecord
	Evaluations []runner.EvaluationRecord // of the surviving lineage
	Rows        uint64                    // rows committed in the surviving lineage
	Skipped     uint64                    // samples settled by skips
	Ended       *runner.EndRecord         // nil where the last life did not end in good order
}

// Recover makes a State of a journal's records: use Visit with Open or Scan,
// then State. It trusts the records; Verify does not.
type Recover struct {
	state State
	plans plans
}

// Visit takes the next record.
func (v *Recover) Visit(e Entry) error {
	s := &v.state
	switch r := e.Record.(type) {
	case runner.StartRecord:
		s.Manifest, s.Lineage, s.Ended = r.Manifest, max(s.Lineage, 1), nil
	case runner.ExcludeRecord:
		s.Excluded = true
	case runner.ArrangeRecord:
		s.Arranged = append(s.Arranged, r)
	case runner.PlanRecord:
		if r.Plan.Step < 1 || r.Plan.Step > v.plans.last()+1 {
			return damaged(e.File, int(e.Offset), fmt.Errorf("want a plan of step 1 to %d, got %d", v.plans.last()+1, r.Plan.Step))
		}
		v.replaced(r)
		v.plans.put(rows.Step{Plan: r.Plan, Rows: r.Rows})
	case runner.RestoreRecord:
		s.Lineage = r.Lineage
		v.rewind(r.Step)
	case runner.CommitRecord:
		if r.Step != s.Committed+1 {
			return damaged(e.File, int(e.Offset), fmt.Errorf("want the commit of step %d, got %d", s.Committed+1, r.Step))
		}
		s.Committed = r.Step
		s.Commits = append(s.Commits, r)
		s.Rows += uint64(len(r.Rows))
	case runner.CheckpointRecord:
		s.Checkpoints = append(s.Checkpoints, r)
	case runner.EvaluationRecord:
		s.Evaluations = append(s.Evaluations, r)
	case runner.EndRecord:
		s.Ended = &r
	}
	return nil
}

// replaced counts the samples that a revised plan leaves out: a skip counts
// once its plan is there.
func (v *Recover) replaced(r runner.PlanRecord) {
	old := v.plans.of(r.Plan.Step)
	if old == nil {
		return
	}
	kept := map[runner.Row]bool{}
	for _, row := range r.Rows {
		kept[row.Row] = true
	}
	for _, row := range old.Rows {
		if !kept[row.Row] {
			v.state.Skipped += uint64(len(row.Pieces))
		}
	}
}

// rewind drops what a restore to step n undoes. Checkpoints of later steps
// stay: their chain tells whether they still belong to the run.
func (v *Recover) rewind(n runner.Step) {
	s := &v.state
	for len(s.Commits) > 0 && s.Commits[len(s.Commits)-1].Step > n {
		s.Rows -= uint64(len(s.Commits[len(s.Commits)-1].Rows))
		s.Commits = s.Commits[:len(s.Commits)-1]
	}
	s.Committed = min(s.Committed, n)
	kept := s.Evaluations[:0:0]
	for _, e := range s.Evaluations {
		if e.Step <= n {
			kept = append(kept, e)
		}
	}
	s.Evaluations = kept
}

// State gives what the records so far come to.
func (v *Recover) State() State {
	s := v.state
	s.Plans = make([]runner.PlanRecord, len(v.plans.steps))
	for i, p := range v.plans.steps {
		s.Plans[i] = runner.PlanRecord{Plan: p.Plan, Rows: p.Rows, Chain: v.plans.chains[i]}
	}
	return s
}
