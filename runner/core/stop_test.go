package core

import (
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestQuickStop(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 4, slots: 2, checkpoint: 2, budget: 9}
	for _, c := range []struct {
		name   string
		moment func(*world) bool
		code   int
		lost   string
	}{
		{"in warm-up, where nothing is lost", func(w *world) bool { return w.procs[1].warming }, runner.ExitStopped, ""},
		{"in a step after a checkpoint of the one before", func(w *world) bool {
			return w.core.decided == 2 && holding(1, lastTrain)(w)
		}, runner.ExitStopped, ""},
		{"a step after the checkpoint", func(w *world) bool { return w.core.decided == 2 && holding(1, lastTrain)(w) },
			runner.ExitStopped, "; ended at once: what was trained after checkpoint " + nameOf(2) + ", to step 3, will be trained again"},
		{"before there is a checkpoint", func(w *world) bool { return w.core.decided == 1 && holding(1, is[runner.Commit])(w) },
			runner.ExitFailed, "; ended at once, before there was a checkpoint: the work of 1 steps is lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, s, c.moment)
			if x.core.decided == 2 {
				x.settle(1, lastTrain) // the checkpoint, above all
			}
			if c.lost != "" {
				x.until(func(w *world) bool { return holding(1, is[runner.Commit])(w) })
			}
			x.give(StopRequested{Quick: true, Reason: "a second signal"})
			saved := len(x.disk)
			if n := len(x.kills()); n != 3 {
				t.Errorf("%d lives were killed, want all 3", n)
			}
			if f := x.over(); f.Code != c.code || f.Reason != "a second signal"+c.lost || len(x.disk) != saved {
				t.Errorf("finished with %+v, %d checkpoints, want code %d and %d", f, len(x.disk), c.code, saved)
			}
		})
	}
}

// A stop after the last step gives up what is left to evaluate, and a resume
// makes up for it.
func TestStopInTheLastEvaluation(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 2, slots: 2, budget: 9, evaluation: Evaluation{AtEnd: true, Heldout: 3, HeldoutChunk: 1}}
	x := stage(t, s, func(w *world) bool { return w.core.decided == 2 && w.core.end.on && holding(0, is[runner.Evaluate])(w) })
	x.give(StopRequested{Reason: "a signal"})
	if f := x.over(); f.Code != runner.ExitStopped || f.Reason != "a signal" || x.bad != "" {
		t.Errorf("finished with %+v %s\n%s", f, x.bad, x.history())
	}
	if got := stepsOf(x.disk); len(got) != 1 || got[0] != 2 {
		t.Errorf("the disk holds %v, want step 2", got)
	}
	for _, r := range x.journal {
		if e, ok := r.(runner.EvaluationRecord); ok {
			t.Errorf("the evaluation went on: %+v", e)
		}
	}
}

// A quick end of a run that failed does not make it a good stop.
func TestQuickStopOfAFailure(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 4, slots: 2, checkpoint: 1, budget: 9}
	x := stage(t, s, func(w *world) bool { return w.core.decided == 2 })
	x.core.finish(runner.ExitFailed, "it failed", false)
	x.give(StopRequested{Quick: true, Reason: "a second signal"})
	if f := x.over(); f.Code != runner.ExitFailed || f.Reason != "it failed" {
		t.Errorf("finished with %+v", f)
	}
}

func TestGracefulStop(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 2, steps: 4, slots: 2, budget: 9}
	for _, c := range []struct {
		name   string
		moment func(*world) bool
		step   runner.Step // on the disk at the end
	}{
		{"before anything is decided", func(w *world) bool { return w.procs[2].warming }, 0},
		{"a step that is all under way is finished", func(w *world) bool { return w.core.decided == 1 && holding(1, lastTrain)(w) }, 2},
		{"one that is not is given up", func(w *world) bool {
			return w.core.decided == 1 && holding(1, is[runner.Train])(w) && !holding(1, lastTrain)(w)
		}, 1},
		{"a decided one is finished", func(w *world) bool { return w.core.decided == 2 && holding(1, is[runner.Commit])(w) }, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, s, c.moment)
			x.give(StopRequested{Reason: "a signal"})
			if f := x.over(); f.Code != runner.ExitStopped || x.bad != "" {
				t.Fatalf("finished with %+v %s\n%s", f, x.bad, x.history())
			}
			if got := stepsOf(x.disk); c.step == 0 && len(got) > 0 || c.step > 0 && (len(got) != 1 || got[0] != c.step) {
				t.Errorf("the disk holds %v, want step %d", got, c.step)
			}
			if _, ok := x.journal[len(x.journal)-1].(runner.EndRecord); !ok {
				t.Errorf("the last record is %T", x.journal[len(x.journal)-1])
			}
		})
	}
}

// A stop whose last drafter dies before it has saved says what that cost, and is
// no good stop where there is nothing to go on from.
func TestStopThatNobodyLivesToSave(t *testing.T) {
	for _, c := range []struct {
		name       string
		checkpoint runner.Step
		decided    runner.Step
		code       int
		lost       string
	}{
		{"before there is a checkpoint", 0, 1, runner.ExitFailed, "; no drafter was left to save, before there was a checkpoint: the work of 1 steps is lost"},
		{"after one", 2, 3, runner.ExitStopped, "; no drafter was left to save: what was trained after checkpoint " + nameOf(2) + ", to step 3, will be trained again"},
		{"of the step itself", 2, 2, runner.ExitStopped, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := setup{targets: 1, drafters: 2, micros: 2, steps: 6, slots: 2, checkpoint: c.checkpoint, budget: 9}
			training := func(step runner.Step) func(*world) bool {
				return func(w *world) bool {
					return w.core.decided == step && holding(1, lastTrain)(w)
				}
			}
			x := stage(t, s, training(min(c.decided, 2)))
			if c.checkpoint > 0 {
				x.settle(1, lastTrain) // the checkpoint, above all
			}
			x.until(training(c.decided))
			x.give(StopRequested{Reason: "a signal"})
			for i := 1; i <= 2; i++ {
				x.dies(i, runner.Failure{Cause: runner.CauseSignal, Message: "killed"})
			}
			if f := x.over(); f.Code != c.code || f.Reason != "a signal"+c.lost {
				t.Errorf("finished with %+v, want code %d and %q", f, c.code, c.lost)
			}
		})
	}
}

// A stop that finds no memory for an image of its last step says so: drafters
// lived.
func TestStopWithoutMemoryForAnImage(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 2, steps: 6, slots: 2, imageEvery: 1, budget: 9}
	x := stage(t, s, func(*world) bool { return true })
	x.noMemory = true
	x.until(func(w *world) bool { return w.core.noImage == 2 })
	x.give(StopRequested{Reason: "a signal"})
	want := "a signal; no image of the last step could be made, before there was a checkpoint: the work of 2 steps is lost"
	if f := x.over(); f.Code != runner.ExitFailed || f.Reason != want || x.core.decided != 2 {
		t.Errorf("finished with %+v after step %d, want %q", f, x.core.decided, want)
	}
}

// A graceful stop that takes too long turns quick.
func TestAGracefulStopHasADeadline(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 4, slots: 2, budget: 9}
	s.tune = func(c *Config) { c.Deadlines.Stop = time.Minute }
	x := stage(t, s, func(w *world) bool { return w.core.decided == 1 && holding(1, lastTrain)(w) })
	x.give(StopRequested{Reason: "a signal"})
	x.pass(time.Minute - 1)
	if len(x.kills()) > 0 {
		t.Fatal("killed before the deadline")
	}
	x.pass(1)
	if f := x.over(); f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "longer than 1m0s") {
		t.Errorf("finished with %+v", f)
	}
}

func TestNothingToTrain(t *testing.T) {
	x := stage(t, setup{targets: 1, drafters: 1, micros: 1, steps: 0, slots: 1}, func(*world) bool { return true })
	if f := x.over(); f.Code != runner.ExitHopeless || !strings.Contains(f.Reason, "nothing was trained") {
		t.Errorf("finished with %+v, want code 93", f)
	}
}

// A worker that drains refuses what it had not begun: that is no failure.
func TestDrainingWorkersMayRefuse(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 2, slots: 2, budget: 9}
	x := stage(t, s, holding(0, is[runner.Produce]))
	x.give(StopRequested{Reason: "a signal"})
	x.settle(0, is[runner.Produce])
	if !holding(0, is[runner.Drain])(x.world) {
		t.Fatalf("it was not told to drain\n%s", x.history())
	}
	x.answer(0, is[runner.Produce], runner.Failed{Kind: runner.Canceled, Message: "draining"})
	for _, k := range x.kills() {
		if k.Life.Worker.Role == runner.Target {
			t.Errorf("killed: %+v", k)
		}
	}
	if f := x.over(); f.Code != runner.ExitStopped {
		t.Errorf("finished with %+v", f)
	}
}
