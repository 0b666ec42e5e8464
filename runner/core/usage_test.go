package core

import (
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestUsage: of every worker, the whole time from the first order to train to
// the last decision went to something, and to what it must have gone to.
func TestUsage(t *testing.T) {
	for _, s := range []setup{
		{targets: 1, drafters: 1, micros: 2, steps: 4, slots: 1},
		{targets: 1, drafters: 2, micros: 2, steps: 4, slots: 3, turns: 1},
		{targets: 2, drafters: 2, micros: 1, steps: 3, slots: 2, turns: 2, evaluation: Evaluation{AtStart: true, Heldout: 2, HeldoutChunk: 1, NewTokens: 4}},
	} {
		w := newWorld(&s, 0, 0)
		for range 2000 {
			if w.finished != nil {
				break
			}
			w.now = w.now.Add(time.Second) // every move takes one
			for _, m := range w.moves() {
				if !m.fault() {
					w.apply1(m)
					break
				}
			}
		}
		if w.finished == nil || w.finished.Code != runner.ExitDone {
			t.Fatalf("%+v: finished with %+v %s", s, w.finished, w.bad)
		}
		m := w.core.moments()
		whole := m.Decided.Sub(m.Training)
		for _, x := range w.core.View().Workers {
			sum := time.Duration(0)
			used := x.Usage.ByName()
			for _, spent := range used {
				sum += spent
			}
			if sum != whole || whole <= 0 {
				t.Errorf("%d drafters: %s: %v in all of %v: %v", s.drafters, x.Worker, sum, whole, used)
			}
			wanted := "train"
			if x.Worker.Role == runner.Target {
				wanted = "produce"
			}
			done, rows := x.Done.ByName(), uint64(s.steps*s.micros)
			if x.Worker.Role == runner.Drafter && (done["train"] != rows || done["commit"] != uint64(s.steps)-1) {
				t.Errorf("%d drafters: %s: got %v, want %d rows and all updates but the last", s.drafters, x.Worker, done, rows)
			}
			if s.targets == 1 && x.Worker.Role == runner.Target && (done["produce"] == 0 || done["produce"] > rows*uint64(s.drafters)) {
				t.Errorf("%d drafters: %s: got %v, want at most %d rows", s.drafters, x.Worker, done, rows*uint64(s.drafters))
			}
			if s.targets == 1 && used[wanted] == 0 || used["absent"] != 0 {
				t.Errorf("%d drafters: %s: %v", s.drafters, x.Worker, used)
			}
		}
	}
}

// TestDoing: why a drafter or a target does not compute, state by state.
func TestDoing(t *testing.T) {
	for name, c := range map[string]struct {
		slots   uint32
		micros  int
		until   func(w *world) bool
		drafter string
	}{
		"its row is not there": {1, 3, func(w *world) bool {
			d, p := &w.core.workers[1], w.core.openPlan()
			return p != nil && d.micro > 0 && d.micro < 3 && !w.core.hasRow(d, p) && !computes[runner.Train](w, 1)
		}, "row"},
		"it trains":                {3, 2, func(w *world) bool { return computes[runner.Train](w, 1) }, "train"},
		"its update is on its way": {3, 1, func(w *world) bool { return computes[runner.Commit](w, 1) }, "commit"},
	} {
		s := setup{targets: 1, drafters: 1, micros: c.micros, steps: 3, slots: c.slots}
		w := newWorld(&s, 0, 0)
		for range 500 {
			if c.until(w) {
				break
			}
			for _, m := range w.moves() {
				if !m.fault() {
					w.apply1(m)
					break
				}
			}
		}
		if got := doingNames[w.core.doing(&w.core.workers[1], &outlook{})]; got != c.drafter {
			t.Errorf("%s: got %s, want %s", name, got, c.drafter)
		}
	}
}

// computes says whether a worker has an order of a type that holds a turn.
func computes[T runner.Order](w *world, worker int) bool {
	for _, o := range w.core.workers[worker].orders {
		if is[T](o.order) && o.turn != noTurn {
			return true
		}
	}
	return false
}
