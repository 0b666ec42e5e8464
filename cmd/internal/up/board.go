package up

import (
	"slices"
	"sync"
	"time"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// stageNames are the stages of a run, in order.
var stageNames = []string{"environment", "target", "regenerate", "prepare", "launch", "warm_up", "evaluate_before", "train", "evaluate_after", "export"}

// board keeps where every stage stands. Any goroutine may write to it. Stages
// may overlap: evaluation before training goes on beside the first steps.
type board struct {
	mu     sync.Mutex // guards below
	stages []admin.Stage
	began  map[string]time.Time
	pace   map[string]pace
	around map[string][2]uint64 // what comes before and after a stage's present job
	now    func() time.Time
}

// pace is from where a stage's pace is judged: an earlier phase, or time that
// was shared with another stage, says nothing of what is to come.
type pace struct {
	at   time.Time
	done uint64
}

func newBoard(now func() time.Time) *board {
	b := &board{began: map[string]time.Time{}, pace: map[string]pace{}, around: map[string][2]uint64{}, now: now}
	for _, n := range stageNames {
		b.stages = append(b.stages, admin.Stage{Name: n, State: admin.StageWaiting})
	}
	return b
}

// with calls f with the stage's entry, under the lock.
func (b *board) with(name string, f func(s *admin.Stage)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.stages {
		if b.stages[i].Name == name {
			f(&b.stages[i])
			return
		}
	}
	panic("up: unknown stage " + name) // a bug: the set is closed
}

// begin starts a stage, once.
func (b *board) begin(name string) { b.beginAt(name, b.now()) }

// beginAt starts a stage that began at that time, once.
func (b *board) beginAt(name string, at time.Time) {
	b.with(name, func(s *admin.Stage) {
		if s.State == admin.StageWaiting {
			s.State = admin.StageRunning
			b.began[name] = at
			b.pace[name] = pace{at, s.Done}
		}
	})
}

// count says how far a stage is.
func (b *board) count(name string, done, total uint64) {
	b.with(name, func(s *admin.Stage) { s.Done, s.Total = done, total })
}

// enter says which of its phases a stage is in now, and that nothing of it is
// counted yet; done and total are of that phase alone.
func (b *board) enter(name, phase string) {
	b.with(name, func(s *admin.Stage) {
		if s.Phase != phase {
			s.Phase, s.Done, s.Total, b.pace[name] = phase, 0, 0, pace{b.now(), 0}
		}
	})
}

// expect says that a stage is a chain of jobs, and how much there was before
// the next of them and will be after it.
func (b *board) expect(name string, before, after int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.around[name] = [2]uint64{uint64(before), uint64(after)}
}

// progress takes a job's report. What a job does before its stage's own work,
// which goes by the stage's name, is named, but is no part of that work.
func (b *board) progress(name string, p *jobv1.Progress) {
	b.begin(name)
	b.with(name, func(s *admin.Stage) {
		if p.Stage != name {
			s.Phase, s.Done, s.Total, b.pace[name] = p.Stage, 0, 0, pace{b.now(), 0}
			return
		}
		beside := b.around[name]
		s.Phase, s.Done, s.Total = "", beside[0]+p.Done, beside[0]+p.Total+beside[1]
		if len(p.Figures) > 0 {
			s.Figures = p.Figures
		}
	})
}

// evaluation moves a stage along with an evaluation. One that was dropped
// though the run goes on was skipped.
func (b *board) evaluation(name string, v core.Span, ending bool) {
	if v.Began.IsZero() {
		return
	}
	b.beginAt(name, v.Began)
	b.with(name, func(s *admin.Stage) {
		if v.What != s.Phase {
			s.Phase, b.pace[name] = v.What, pace{b.now(), v.Done}
		}
		s.Done, s.Total = v.Done, v.Total
	})
	switch {
	case !v.Ended.IsZero():
		b.doneAt(name, v.Ended)
	case !v.Open && !ending:
		b.finish(name, admin.StageSkipped)
	}
}

func (b *board) finish(name, state string) {
	b.with(name, func(s *admin.Stage) {
		if s.State == admin.StageRunning {
			s.Seconds = b.now().Sub(b.began[name]).Seconds()
		}
		if s.State == admin.StageRunning || s.State == admin.StageWaiting {
			s.State, s.Phase = state, ""
		}
	})
}

// done ends a stage well, if it was begun.
func (b *board) done(name string) { b.doneAt(name, b.now()) }

// doneAt ends a stage well that ended at that time, if it was begun. What runs
// beside it goes at its own pace from then on.
func (b *board) doneAt(name string, at time.Time) {
	b.with(name, func(s *admin.Stage) {
		if s.State != admin.StageRunning {
			return
		}
		s.State, s.Phase, s.Seconds = admin.StageDone, "", at.Sub(b.began[name]).Seconds()
		s.Done = max(s.Done, s.Total)
		for _, o := range b.stages {
			if o.State == admin.StageRunning {
				b.pace[o.Name] = pace{at, o.Done}
			}
		}
	})
}

// reused says that an earlier run's result is taken.
func (b *board) reused(name string) { b.finish(name, admin.StageReused) }

// end closes what is open: the running stages by how the run ended, others as skipped.
func (b *board) end(code int) {
	b.mu.Lock()
	names := map[string]string{}
	for _, s := range b.stages {
		switch {
		case s.State == admin.StageRunning && code == runner.ExitDone:
			names[s.Name] = admin.StageDone
		case s.State == admin.StageRunning && code == runner.ExitStopped:
			names[s.Name] = admin.StageStopped
		case s.State == admin.StageRunning:
			names[s.Name] = admin.StageFailed
		case s.State == admin.StageWaiting:
			names[s.Name] = admin.StageSkipped
		}
	}
	b.mu.Unlock()
	for n, state := range names {
		b.finish(n, state)
	}
}

// picture gives a copy of all stages, with their times, and the running one:
// the first, for which the others wait, where several run.
func (b *board) picture() (stages []admin.Stage, running string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	stages = slices.Clone(b.stages)
	for i := range stages {
		s := &stages[i]
		if s.State != admin.StageRunning {
			continue
		}
		if running == "" {
			running = s.Name
		}
		s.Seconds = b.now().Sub(b.began[s.Name]).Seconds()
		p := b.pace[s.Name]
		if s.Done > p.done && s.Total > s.Done {
			eta := b.now().Sub(p.at).Seconds() / float64(s.Done-p.done) * float64(s.Total-s.Done)
			s.ETAS = &eta
		}
	}
	return stages, running
}
