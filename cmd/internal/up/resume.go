package up

import (
	"crypto/rand"
	"errors"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// history folds a journal's records into what a core resumes from. It decides
// nothing and touches nothing: the records are the whole input.
type history struct {
	resume      core.Resume
	plans       map[runner.Step]runner.PlanRecord
	committed   []tally                        // by step, of the surviving lineage
	lineages    map[runner.Step]runner.Lineage // of each of them
	checkpoints map[string]runner.CheckpointRecord
	skipped     map[runner.Row]uint64 // samples in each
	excluded    uint64                // samples
	any         bool                  // something was written
}

// tally is what one committed step counts for.
type tally struct {
	commit                 runner.CommitRecord
	step                   runner.Step
	rows, samples, tokens  uint64
	numerator, denominator float64 // of its loss
}

func newHistory() *history {
	return &history{plans: map[runner.Step]runner.PlanRecord{}, lineages: map[runner.Step]runner.Lineage{}, checkpoints: map[string]runner.CheckpointRecord{}, skipped: map[runner.Row]uint64{}}
}

// take folds one record.
func (h *history) take(r runner.Record) {
	v := &h.resume
	h.any = true
	switch r := r.(type) {
	case runner.StartRecord:
		v.Lineage = max(v.Lineage, r.Lineage, 1) // a life begins one, even if it was killed before it did anything
	case runner.ExcludeRecord:
		v.Excluded = true
		h.excluded += uint64(len(r.Samples))
	case runner.ArrangeRecord:
		v.Arranged = append(v.Arranged, r)
	case runner.PlanRecord:
		h.plans[r.Plan.Step] = r
	case runner.CommitRecord:
		v.Lineage = max(v.Lineage, r.Lineage)
		v.Committed, h.lineages[r.Step] = r.Step, r.Lineage
		h.committed = append(h.committed, tallyOf(r, h.plans[r.Step].Rows))
	case runner.RestoreRecord:
		v.Lineage = max(v.Lineage, r.Lineage)
		h.rewind(r.Step)
	case runner.SkipRecord:
		h.skipped[r.Row] = uint64(len(r.Samples))
	case runner.CheckpointRecord:
		h.checkpoints[r.Name] = r
	case runner.EvaluationRecord:
		v.Evaluations = append(v.Evaluations, r)
	}
}

// rewind forgets what a restore to step s undid.
func (h *history) rewind(s runner.Step) {
	h.resume.Committed = s
	h.committed = slices.DeleteFunc(h.committed, func(t tally) bool { return t.step > s })
	h.resume.Evaluations = slices.DeleteFunc(h.resume.Evaluations, func(e runner.EvaluationRecord) bool { return e.Step > s })
}

func tallyOf(r runner.CommitRecord, plans []runner.RowPlan) tally {
	t := tally{commit: r, step: r.Step, rows: uint64(len(plans))}
	for _, row := range r.Rows {
		t.numerator, t.denominator = t.numerator+row.Numerator, t.denominator+row.Denominator
	}
	for _, p := range plans {
		t.samples += uint64(len(p.Pieces))
		for _, c := range p.Pieces {
			t.tokens += uint64(c.Tokens)
		}
	}
	return t
}

// end gives what the core resumes from. there says whether a checkpoint's
// directory is there and holds the image that the journal names.
func (h *history) end(there func(runner.CheckpointRecord) bool) *core.Resume {
	v := &h.resume
	for _, c := range h.checkpoints {
		if there(c) {
			v.Checkpoints = append(v.Checkpoints, c)
		}
	}
	slices.SortFunc(v.Checkpoints, func(a, b runner.CheckpointRecord) int { return int(int64(a.Step) - int64(b.Step)) })
	for _, p := range h.plans {
		v.Plans = append(v.Plans, p)
	}
	slices.SortFunc(v.Plans, func(a, b runner.PlanRecord) int { return int(int64(a.Plan.Step) - int64(b.Plan.Step)) })
	h.rechain()
	for _, t := range h.committed {
		v.Commits = append(v.Commits, t.commit)
		v.Rows, v.Samples, v.Tokens = v.Rows+t.rows, v.Samples+t.samples, v.Tokens+t.tokens
		if t.denominator == 0 {
			continue // every place was weightless
		}
		if v.LossLast = t.numerator / t.denominator; !v.Trained {
			v.Trained, v.LossFirst = true, v.LossLast
		}
	}
	v.Skipped = h.excluded
	for _, plan := range v.Plans {
		for _, row := range plan.Rows {
			delete(h.skipped, row.Row) // its revised plan was never written: the skip did not happen
		}
	}
	for _, samples := range h.skipped {
		v.Skipped += samples
	}
	return v
}

// rechain computes the plans' chains anew. A revised plan changes the chains of
// all later ones, and a crash may have come before those were written again.
func (h *history) rechain() {
	plans, prev := h.resume.Plans, runner.Chain{}
	for i := range plans {
		if plans[i].Plan.Step != runner.Step(i+1) {
			return // the core refuses a gap
		}
		plans[i].Chain = rows.Chain(prev, rows.Step{Plan: plans[i].Plan, Rows: plans[i].Rows})
		prev = plans[i].Chain
	}
}

// openJournal goes on with the run's journal, or begins one.
func (u *up) openJournal(st *store) (*journal.Writer, *core.Resume, error) {
	dir := u.dir.join("journal")
	if !hasJournal(u.dir.path) {
		var id journal.RunID
		if _, err := rand.Read(id[:]); err != nil {
			return nil, nil, runner.Errorf(runner.Internal, "name journal: %w", err)
		}
		w, err := journal.Create(dir, id)
		return w, nil, err
	}
	h := newHistory()
	w, s, err := journal.Open(dir, func(e journal.Entry) error { h.take(e.Record); return nil })
	if err != nil {
		return nil, nil, err
	}
	if s.Torn != nil {
		u.note("journal cut", s.Torn.File+": "+s.Torn.Reason)
	}
	if !h.any {
		return w, nil, nil
	}
	resume := h.end(func(c runner.CheckpointRecord) bool {
		f, err := image.ReadFacts(st.path(c.Name))
		return err == nil && f.Step == c.Step && f.Image == hexOf(c.Image)
	})
	if err := u.adopt(h, st); err != nil {
		return nil, nil, errors.Join(err, w.Close())
	}
	u.mu.Lock()
	u.tokensBefore = resume.Tokens
	u.mu.Unlock()
	return w, resume, nil
}
