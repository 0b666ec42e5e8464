package up

import (
	"slices"
	"sync"
	"time"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// stageNames are the stages of a run, in order.
var stageNames = []string{"environment", "target", "regenerate", "prepare", "launch", "warm_up", "evaluate_before", "train", "evaluate_after", "export"}

// board keeps where every stage stands. Any goroutine may write to it.
type board struct {
	mu     sync.Mutex // guards below
	stages []admin.Stage
	began  map[string]time.Time
	now    func() time.Time
}

func newBoard(now func() time.Time) *board {
	b := &board{began: map[string]time.Time{}, now: now}
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
func (b *board) begin(name string) {
	b.with(name, func(s *admin.Stage) {
		if s.State == admin.StageWaiting {
			s.State = admin.StageRunning
			b.began[name] = b.now()
		}
	})
}

// count says how far a running stage is.
func (b *board) count(name string, done, total uint64) {
	b.with(name, func(s *admin.Stage) { s.Done, s.Total = done, total })
}

// progress takes a job's report.
func (b *board) progress(name string, p *jobv1.Progress) {
	b.begin(name)
	b.with(name, func(s *admin.Stage) {
		s.Done, s.Total = p.Done, p.Total
		if len(p.Figures) > 0 {
			s.Figures = p.Figures
		}
	})
}

func (b *board) finish(name, state string) {
	b.with(name, func(s *admin.Stage) {
		if s.State == admin.StageRunning {
			s.Seconds = b.now().Sub(b.began[name]).Seconds()
		}
		if s.State == admin.StageRunning || s.State == admin.StageWaiting {
			s.State = state
		}
	})
}

// done ends a stage well, if it was begun.
func (b *board) done(name string) {
	b.with(name, func(s *admin.Stage) {
		if s.State == admin.StageRunning {
			s.State, s.Seconds = admin.StageDone, b.now().Sub(b.began[name]).Seconds()
			s.Done = max(s.Done, s.Total)
		}
	})
}

// reused says that an earlier run's result is taken.
func (b *board) reused(name string) { b.finish(name, admin.StageReused) }

// end closes what is open: the running stage as failed or skipped, others as skipped.
func (b *board) end(well bool) {
	b.mu.Lock()
	names := map[string]string{}
	for _, s := range b.stages {
		switch {
		case s.State == admin.StageRunning && well:
			names[s.Name] = admin.StageDone
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

// picture gives a copy of all stages, with their times, and the running one.
func (b *board) picture() (stages []admin.Stage, running string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	stages = slices.Clone(b.stages)
	for i := range stages {
		s := &stages[i]
		if s.State != admin.StageRunning {
			continue
		}
		running = s.Name
		s.Seconds = b.now().Sub(b.began[s.Name]).Seconds()
		if s.Done > 0 && s.Total >= s.Done {
			eta := s.Seconds / float64(s.Done) * float64(s.Total-s.Done)
			s.ETAS = &eta
		}
	}
	return stages, running
}
