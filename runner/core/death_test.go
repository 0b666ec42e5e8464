package core

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

var two = setup{targets: 1, drafters: 2, micros: 2, steps: 2, slots: 2, imageEvery: 1, budget: 9}

// What a worker answers or fails to answer, and what the core makes of it.
func TestAnswersThatCostALife(t *testing.T) {
	no := func(k runner.Kind) runner.Failed { return runner.Failed{Kind: k, Message: "no", Hint: "do this"} }
	for _, c := range []struct {
		name   string
		moment func(*world) bool
		do     func(*scene)
		worker string
		cause  runner.Cause
		want   string
	}{
		{"a produce that fails", holding(0, is[runner.Produce]), func(x *scene) { x.answer(0, is[runner.Produce], no(runner.Internal)) }, "target/0", runner.CausePython, "produce failed with kind internal: no"},
		{"a CUDA fault", holding(0, is[runner.Produce]), func(x *scene) { x.answer(0, is[runner.Produce], no(runner.Fatal)) }, "target/0", runner.CauseCUDA, "no"},
		{"a row that was not ordered", holding(0, is[runner.Produce]), func(x *scene) { x.answer(0, is[runner.Produce], runner.Produced{Row: 9}) }, "target/0", runner.CauseProtocol, "does not fit"},
		{"a handle of an older version (I4)", holding(0, is[runner.Produce]), func(x *scene) {
			x.answer(0, is[runner.Produce], runner.Produced{Row: 1, Handle: runner.Handle{Arena: 1, Version: 0}})
		}, "target/0", runner.CauseProtocol, "does not fit"},
		{"a reply of another order's type", holding(0, is[runner.Produce]), func(x *scene) { x.answer(0, is[runner.Produce], runner.Committed{}) }, "target/0", runner.CauseProtocol, "does not fit"},
		{"an answer to nothing", holding(0, is[runner.Produce]), func(x *scene) {
			x.give(Replied{Life: x.procs[0].life, Seq: 99, Reply: runner.Drained{}})
		}, "target/0", runner.CauseProtocol, "does not have"},
		{"a commit that fails", holding(1, is[runner.Commit]), func(x *scene) { x.answer(1, is[runner.Commit], no(runner.Internal)) }, "drafter/0", runner.CausePython, "commit failed"},
		{"a vote for another's rows", holding(1, lastTrain), func(x *scene) {
			x.answer(1, lastTrain, ballot(x, 1, func(v *runner.Voted) { v.Rows = v.Rows[1:] })...)
		}, "drafter/0", runner.CauseProtocol, "does not fit"},
		{"a vote of another communicator", holding(1, lastTrain), func(x *scene) {
			x.answer(1, lastTrain, ballot(x, 1, func(v *runner.Voted) { v.Communicator++ })...)
		}, "drafter/0", runner.CauseProtocol, "does not fit"},
		{"trained for ever and no vote", holding(1, lastTrain), func(x *scene) {
			said := ballot(x, 1, func(*runner.Voted) {})[0]
			x.answer(1, lastTrain, said, said)
		}, "drafter/0", runner.CauseProtocol, "does not fit"},
		{"trained for another row", holding(1, lastTrain), func(x *scene) {
			said := ballot(x, 1, func(*runner.Voted) {})[0].(runner.Trained)
			said.Row++
			x.answer(1, lastTrain, said)
		}, "drafter/0", runner.CauseProtocol, "does not fit"},
		{"an abort that leaves the device broken", holding(1, lastTrain), func(x *scene) {
			x.answer(1, lastTrain, no(runner.Unavailable))
			x.answer(1, is[runner.Abort], runner.Aborted{Step: 1})
		}, "drafter/0", runner.CauseCUDA, "could not prove"},
		{"a CUDA fault in training", holding(1, lastTrain), func(x *scene) { x.answer(1, lastTrain, no(runner.Fatal)) }, "drafter/0", runner.CauseCUDA, "train failed with kind fatal"},
		{"a loaded state of another chain", nil, func(x *scene) {
			x.until(func(w *world) bool { return w.core.decided == 1 && w.procs[2].at == 1 })
			x.crashed(&x.procs[2], false)
			x.acts = nil
			x.until(holding(2, is[runner.Load]))
			x.answer(2, is[runner.Load], runner.Loaded{Step: 1, Parameters: digest(x.procs[1].value)})
		}, "drafter/1", runner.CauseProtocol, "does not fit"},
		{"a certificate refused", func(w *world) bool { return w.procs[0].warming }, func(x *scene) {
			x.give(Unfit{Life: x.procs[0].life, Cause: runner.CauseCert, Message: "dense_calls: want 0, got 4"})
		}, "target/0", runner.CauseCert, "dense_calls"},
		{"another slot size than in its earlier life", nil, func(x *scene) {
			x.until(holding(0, is[runner.Produce]))
			x.crashed(&x.procs[0], false)
			x.acts = nil
			x.slotBytes = 65
			x.reap(&x.procs[0])
			x.slotBytes = 64
		}, "target/0", runner.CauseProtocol, "65 bytes, want 64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.moment == nil {
				c.moment = func(*world) bool { return true }
			}
			x := stage(t, two, c.moment)
			c.do(x)
			x.expectKill(c.worker, c.cause, c.want)
			if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
				t.Errorf("the run did not get over it: %+v %s\n%s", f, x.bad, x.history())
			}
		})
	}
}

// What a worker may answer at no cost but the work itself.
func TestAnswersThatCostNoLife(t *testing.T) {
	for _, c := range []struct {
		name   string
		moment func(*world) bool
		do     func(*scene)
		event  string
	}{
		{"a row whose bytes are bad is produced again", holding(1, is[runner.Pull]), func(x *scene) {
			x.untouch(x.procs[1].life, runner.Slot{Arena: 1})
			x.procs[1].buffers = [2]buffer{}
			x.answer(1, is[runner.Pull], runner.Failed{Kind: runner.Internal, Message: "crc differs"})
		}, "row refused"},
		{"a refused step is tried again", holding(1, lastTrain), func(x *scene) {
			x.answer(1, lastTrain, runner.Failed{Kind: runner.Internal, Message: "refused"})
		}, "step refused"},
		{"a join that fails is tried again", holding(1, is[runner.Join]), func(x *scene) {
			x.answer(1, is[runner.Join], runner.Failed{Kind: runner.Unavailable, Message: "no connection"})
		}, "step refused"},
		{"what a reaped life said is not heard", holding(1, lastTrain), func(x *scene) {
			old := x.procs[2].life
			x.crashed(&x.procs[2], false)
			x.acts = nil
			x.reap(&x.procs[2])
			x.give(Replied{Life: old, Seq: 1, Reply: runner.Drained{}}, LaneClosed{Life: old}, Exited{Life: old}, Certified{Life: old})
		}, "step aborted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, two, c.moment)
			c.do(x)
			if f := x.over(); f.Code != runner.ExitDone || x.bad != "" || len(x.kills()) > 0 {
				t.Errorf("finished with %+v after kills %+v %s\n%s", f, x.kills(), x.bad, x.history())
			}
			seen := false
			for _, e := range x.events {
				seen = seen || e.Name == c.event
			}
			if !seen {
				t.Errorf("people were not told %q", c.event)
			}
		})
	}
}

// A drafter that refuses again and again is taken to be at fault.
func TestRefusingAgainAndAgainCostsALife(t *testing.T) {
	x := stage(t, two, func(*world) bool { return true })
	for range maxBlame {
		x.until(holding(1, lastTrain))
		x.answer(1, lastTrain, runner.Failed{Kind: runner.Internal, Message: "refused"})
	}
	x.expectKill("drafter/0", runner.CausePython, "train failed with kind internal: refused")
	if f := x.over(); f.Code != runner.ExitDone {
		t.Errorf("finished with %+v", f)
	}
}

// A drafter whose pulls fail again and again, whatever the row, is taken to be
// at fault.
func TestPullsThatFailAgainAndAgainCostALife(t *testing.T) {
	x := stage(t, two, func(*world) bool { return true })
	for n := range maxRefused {
		if len(x.kills()) > 0 {
			t.Fatalf("killed after %d pulls that failed", n)
		}
		x.until(holding(1, is[runner.Pull]))
		for _, k := range x.procs[1].fast {
			if p, ok := k.order.(runner.Pull); ok {
				x.untouch(x.procs[1].life, slotOf(p.Handle))
			}
		}
		x.procs[1].buffers = [2]buffer{}
		x.answer(1, is[runner.Pull], runner.Failed{Kind: runner.Internal, Message: "crc differs"})
	}
	x.expectKill("drafter/0", runner.CauseProtocol, "3 of its pulls failed running, the last with: crc differs")
	if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
		t.Errorf("finished with %+v %s", f, x.bad)
	}
}

func TestDeadlines(t *testing.T) {
	s := two
	s.evaluation = Evaluation{AtEnd: true, Heldout: 1, HeldoutChunk: 1}
	s.tune = func(c *Config) {
		c.Deadlines = Deadlines{Launch: 1 * time.Minute, WarmUp: 2 * time.Minute, Order: 3 * time.Minute, Step: 4 * time.Minute, Abort: time.Minute, Image: 5 * time.Minute, Evaluate: time.Minute, Drain: 6 * time.Minute}
	}
	for _, c := range []struct {
		name   string
		i      int // the worker that does not answer ...
		order  func(runner.Order) bool
		after  time.Duration
		worker string // killed; empty: nobody
		want   string
	}{
		{"an order", 0, is[runner.Produce], 3 * time.Minute, "target/0", "did not answer produce within 3m0s"},
		{"just short of it", 0, is[runner.Produce], 3*time.Minute - 1, "", ""},
		{"a commit", 1, is[runner.Commit], 3 * time.Minute, "drafter/0", "did not answer commit"},
		{"an image", 2, is[runner.Image], 5 * time.Minute, "drafter/1", "did not answer image within 5m0s"},
		{"an evaluation", 0, is[runner.Evaluate], time.Minute, "target/0", "did not answer evaluate"},
		{"a drain", 0, is[runner.Drain], 6 * time.Minute, "target/0", "was not drained within 6m0s"},
		// Who hangs in a sum may be waiting for another: the step is given up
		// first, and only who does not answer that is killed.
		{"a sum, and an abort that all answer", 2, lastTrain, 4 * time.Minute, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, s, holding(c.i, c.order))
			x.settle(c.i, c.order)
			x.pass(c.after)
			if c.worker == "" {
				if len(x.kills()) > 0 {
					t.Errorf("kills are %+v, want none", x.kills())
				}
			} else {
				x.expectKill(c.worker, runner.CauseDeadline, c.want)
			}
			if f := x.over(); f.Code != runner.ExitDone {
				t.Errorf("finished with %+v\n%s", f, x.history())
			}
		})
	}
	t.Run("warm-up", func(t *testing.T) {
		x := stage(t, s, func(w *world) bool { return w.procs[0].warming })
		x.pass(2 * time.Minute)
		x.expectKill("target/0", runner.CauseDeadline, "was not certified within 2m0s")
	})
}

// A rank that hangs makes all hang in the sum; it alone does not answer the abort.
func TestAHangInTheSumCostsTheOneThatHangs(t *testing.T) {
	s := two
	s.tune = func(c *Config) { c.Deadlines = Deadlines{Step: time.Minute, Abort: time.Second} }
	x := stage(t, s, holding(2, lastTrain))
	x.pass(time.Minute)
	if n := count(x, func(s Send) bool { return is[runner.Abort](s.Order) }); n != 2 {
		t.Fatalf("%d aborts were ordered, want 2\n%s", n, x.history())
	}
	for n, k := range x.procs[1].fast {
		if is[runner.Abort](k.order) {
			x.quick(1, n)
			break
		}
	}
	x.pass(time.Second)
	x.expectKill("drafter/1", runner.CauseDeadline, "did not answer")
	if f := x.over(); f.Code != runner.ExitDone {
		t.Errorf("finished with %+v", f)
	}
}

// The core asks to be woken when something is due, and not later.
func TestWake(t *testing.T) {
	s := two
	s.tune = func(c *Config) {
		c.Deadlines = Deadlines{WarmUp: time.Hour}
		c.Restart = Restart{Budget: 9, Base: time.Minute}
	}
	x := stage(t, s, func(w *world) bool { return w.procs[1].warming })
	wake := func() (at time.Time) {
		for _, a := range x.acts {
			if a, ok := a.(Wake); ok {
				at = a.At
			}
		}
		return at
	}
	if got := wake(); !got.Equal(t0.Add(time.Hour)) {
		t.Fatalf("woken at %v, want %v", got, t0.Add(time.Hour))
	}
	x.crashed(&x.procs[0], false)
	x.reap(&x.procs[0])
	if got := wake(); !got.Equal(t0.Add(time.Minute)) {
		t.Fatalf("after a death woken at %v, want at the end of the backoff", got)
	}
	if n := count(x, func(a Launch) bool { return a.Life.Generation == 2 }); n != 0 {
		t.Fatal("started again before its backoff was over")
	}
	x.pass(time.Minute)
	if n := count(x, func(a Launch) bool { return a.Life.Generation == 2 }); n != 1 {
		t.Fatal("not started again when its backoff was over")
	}
}

// A worker that fails for good ends the run, after a checkpoint.
func TestFailingForGoodSavesFirst(t *testing.T) {
	for name, i := range map[string]int{"the only target": 0, "a drafter": 2} {
		t.Run(name, func(t *testing.T) {
			s := two
			s.budget, s.steps = 0, 3
			x := stage(t, s, func(w *world) bool { return w.core.decided == 1 && w.procs[1].at == 1 && w.procs[2].at == 1 })
			x.crashed(&x.procs[i], false)
			x.reap(&x.procs[i])
			f := x.over()
			if f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "more than its restart budget of 0 bears") {
				t.Errorf("finished with %+v", f)
			}
			if len(x.disk) != 1 || x.disk[0].step != x.core.decided {
				t.Errorf("the disk holds %+v, want step %d", x.disk, x.core.decided)
			}
		})
	}
}

func TestJournalThatCannotBeWrittenEndsTheRun(t *testing.T) {
	x := stage(t, two, holding(1, lastTrain))
	x.give(JournalFailed{Err: errors.New("no space left on device")})
	appended := count[Append](x, nil)
	x.durable = len(x.journal)
	f := x.over()
	if f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "no space left on device") {
		t.Errorf("finished with %+v", f)
	}
	if count[Append](x, nil) != appended {
		t.Error("records were appended after the journal failed")
	}
}

// A life that a verdict ended has died, also while the run ends; one that only
// ended because the run does has not.
func TestDeathsWhileTheRunEnds(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 1, slots: 2, budget: 9, evaluation: Evaluation{AtEnd: true, Heldout: 2, HeldoutChunk: 1}}
	for name, c := range map[string]struct {
		do    func(*scene, runner.Life)
		cause runner.Cause
		died  int
	}{
		"no sign of life": {func(x *scene, l runner.Life) {
			x.give(Unfit{Life: l, Cause: runner.CauseDeadline, Message: "no sign of life"})
		}, runner.CauseDeadline, 1},
		"its lane closed": {func(x *scene, l runner.Life) { x.give(LaneClosed{Life: l}) }, runner.CauseProtocol, 1},
		"a second signal": {func(x *scene, l runner.Life) { x.give(StopRequested{Quick: true, Reason: "a second signal"}) }, runner.CauseKilled, 0},
		"verdict and stop": {func(x *scene, l runner.Life) {
			x.give(Unfit{Life: l, Cause: runner.CauseDeadline}, StopRequested{Quick: true})
		}, runner.CauseDeadline, 1},
	} {
		t.Run(name, func(t *testing.T) {
			x := stage(t, s, func(w *world) bool { return w.core.decided == 1 && w.core.end.on && holding(0, is[runner.Evaluate])(w) })
			l := x.procs[0].life
			c.do(x, l)
			x.give(Exited{Life: l, Failure: &runner.Failure{Worker: l.Worker, Generation: l.Generation, Cause: c.cause, ForcedBySelf: true}})
			told := count(x, func(a Emit) bool { return a.Event.Failure != nil && a.Event.Level == runner.Alarm })
			if got := x.core.figures.failures; len(got) != c.died || told != c.died {
				t.Errorf("%d failures are kept and %d told of, want %d", len(got), told, c.died)
			}
		})
	}
}

// A supervisor that did not run heard of nobody: what is owed is due anew.
func TestSuspendedSupervisor(t *testing.T) {
	s := two
	s.tune = func(c *Config) { c.Deadlines.Order = time.Minute }
	x := stage(t, s, holding(0, is[runner.Produce]))
	x.now = x.now.Add(time.Hour)
	x.give(Suspended{}, Tick{})
	x.pass(time.Minute - 1)
	if ks := x.kills(); len(ks) > 0 {
		t.Fatalf("killed for the time in which nobody listened: %+v", ks)
	}
	x.pass(1)
	x.expectKill("target/0", runner.CauseDeadline, "did not answer produce within 1m0s")
}
