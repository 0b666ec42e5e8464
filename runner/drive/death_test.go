package drive_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// once gives a fault to the nth order of a type that a worker's first life gets.
func once(w runner.Worker, order string, nth int, fault drivetest.Fault) func(*drivetest.Process, runner.Order) drivetest.Fault {
	var seen atomic.Int64
	return func(p *drivetest.Process, o runner.Order) drivetest.Fault {
		if p.Life() == (runner.Life{Worker: w, Generation: 1}) && runner.OrderType(o) == order && seen.Add(1) == int64(nth) {
			return fault
		}
		return ""
	}
}

var (
	target   = runner.Worker{Role: runner.Target}
	drafter0 = runner.Worker{Role: runner.Drafter}
	drafter1 = runner.Worker{Role: runner.Drafter, Rank: 1}
)

// TestI6_DeathAtEveryOrder: whatever order a worker dies in, hangs in or
// answers wrongly, every sample is trained once and the failure says why.
func TestI6_DeathAtEveryOrder(t *testing.T) {
	for w, orders := range map[runner.Worker][]string{
		target:   {"arena", "produce", "evaluate"},
		drafter0: {"arena", "join", "pull", "train", "commit", "image"},
		drafter1: {"pull", "train", "commit", "image"},
	} {
		for _, order := range orders {
			for fault, cause := range map[drivetest.Fault]runner.Cause{drivetest.Die: runner.CauseSignal, drivetest.Hang: runner.CauseDeadline,
				drivetest.Broken: runner.CauseCUDA, drivetest.Wrong: runner.CauseProtocol} {
				nth := 1
				if order != "arena" && order != "join" {
					nth = 2
				}
				bubble(t, fmt.Sprint(w, " ", order, " ", fault), func(t *testing.T, r *rig) {
					r.launcher.Fault = once(w, order, nth, fault)
					f, v := r.run()
					r.wholeRun(f, v)
					if len(v.Failures) != 1 {
						t.Fatalf("failures %+v", v.Failures)
					}
					if got := v.Failures[0]; got.Worker != w || got.Cause != cause || (fault == drivetest.Broken) != (len(got.Traceback) > 0) {
						t.Errorf("failure %+v", got)
					}
				})
			}
		}
	}
}

func TestDeaths(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(r *rig)
		cause runner.Cause // of each failure
		least int          // failures
		word  string       // of each failure's message
	}{
		{"at the launch", func(r *rig) {
			r.launcher.Before = func(_ context.Context, l runner.Life) error {
				if l == (runner.Life{Worker: drafter1, Generation: 1}) {
					return runner.Errorf(runner.Unavailable, "no such interpreter")
				}
				return nil
			}
		}, runner.CauseLaunch, 1, "no such interpreter"},
		{"a launch that hangs", func(r *rig) {
			r.launcher.Before = func(ctx context.Context, l runner.Life) error {
				if l == (runner.Life{Worker: target, Generation: 1}) {
					<-ctx.Done()
					return &drive.Died{Failure: runner.Failure{Worker: target, Generation: 1, Cause: runner.CauseKilled, Message: "given up"}}
				}
				return nil
			}
		}, runner.CauseDeadline, 1, "not configured"},
		{"a certificate that is refused", func(r *rig) {
			r.launcher.WarmUp = func(_ context.Context, p *drivetest.Process) error {
				if p.Life().Generation == 1 && p.Life().Worker == drafter0 {
					return runner.Errorf(runner.Invalid, "dense calls: want 0, got 3")
				}
				return nil
			}
		}, runner.CauseCert, 1, "dense calls"},
		{"a warm-up that hangs", func(r *rig) {
			r.launcher.WarmUp = func(ctx context.Context, p *drivetest.Process) error {
				if p.Life().Generation == 1 && p.Life().Worker == drafter0 {
					<-ctx.Done()
				}
				return nil
			}
		}, runner.CauseDeadline, 1, "not certified"},
		{"dead at the gate", func(r *rig) {
			r.launcher.WarmUp = func(_ context.Context, p *drivetest.Process) error {
				if p.Life().Generation == 1 {
					p.Die()
				}
				return nil
			}
		}, runner.CauseSignal, 3, "SIGKILL"},
		{"a frame that breaks the rules", func(r *rig) { r.atStep(2, func(p *drivetest.Process) { p.BreakLane() }, target) }, runner.CauseProtocol, 1, "garbage"},
		{"a sign of life that stops", func(r *rig) { r.atStep(2, (*drivetest.Process).Freeze, drafter0) }, runner.CauseDeadline, 1, "no sign of life"},
		{"a deadlock", func(r *rig) { r.atStep(2, (*drivetest.Process).Deadlock, target) }, runner.CauseDeadline, 1, "it hangs: no progress in "},
		{"no end, but it computes", func(r *rig) { r.atStep(2, (*drivetest.Process).Spin, target) }, runner.CauseDeadline, 1, "it did not answer "},
		{"a handle that leaves its slot", func(r *rig) { r.launcher.Fault = once(target, "produce", 3, drivetest.Outside) }, runner.CauseProtocol, 1, "produced row"},
		{"all drafters at once", func(r *rig) { r.atStep(3, (*drivetest.Process).Die, drafter0, drafter1) }, runner.CauseSignal, 2, "SIGKILL"},
		{"all workers at once", func(r *rig) { r.atStep(3, (*drivetest.Process).Die, target, drafter0, drafter1) }, runner.CauseSignal, 3, "SIGKILL"},
		{"while draining", func(r *rig) { r.launcher.Fault = once(target, "drain", 1, drivetest.Die) }, runner.CauseSignal, 1, "SIGKILL"},
	} {
		bubble(t, c.name, func(t *testing.T, r *rig) {
			c.spoil(r)
			f, v := r.run()
			r.wholeRun(f, v)
			if len(v.Failures) != c.least {
				t.Errorf("failures %+v", v.Failures)
			}
			for _, x := range v.Failures {
				if x.Cause != c.cause || !strings.Contains(x.Message, c.word) {
					t.Errorf("failure %+v", x)
				}
			}
		})
	}
}

// atStep does something to workers' newest lives once a step was decided.
func (r *rig) atStep(n runner.Step, do func(*drivetest.Process), workers ...runner.Worker) {
	var first sync.Once
	r.seen = func(_ *drive.Loop, e runner.Event) {
		if e.Step < n {
			return
		}
		first.Do(func() {
			all := r.launcher.All()
			for _, w := range workers {
				for i := len(all) - 1; i >= 0; i-- {
					if all[i].Life().Worker == w {
						do(all[i])
						break
					}
				}
			}
		})
	}
}

// TestI9_LaneThatOutlivesItsProcess: whoever holds the other end of a lane, the
// loop ends.
func TestI9_LaneThatOutlivesItsProcess(t *testing.T) {
	bubble(t, "lingers", func(t *testing.T, r *rig) {
		r.launcher.Linger = true
		r.atStep(3, (*drivetest.Process).Die, drafter0)
		f, v := r.run()
		r.wholeRun(f, v)
		if len(v.Failures) != 1 {
			t.Errorf("failures %+v", v.Failures)
		}
	})
}

func TestNonFiniteRowIsSkipped(t *testing.T) {
	bubble(t, "once", func(t *testing.T, r *rig) {
		r.launcher.Fault = onceLast(drafter1, drivetest.NaN)
		f, v := r.run()
		rep := r.verify()
		if f.Code != runner.ExitDone || v.Skipped != rep.Skipped+rep.Excluded || rep.Skipped == 0 || rep.Epochs != 2 {
			t.Errorf("finish %+v, skipped %d, journal %+v", f, v.Skipped, rep)
		}
	})
	bubble(t, "again and again", func(t *testing.T, r *rig) {
		r.config.Core.NonFinite = 2
		r.launcher.Fault = func(_ *drivetest.Process, o runner.Order) drivetest.Fault {
			if o, ok := o.(runner.Train); ok && o.Last {
				return drivetest.NaN
			}
			return ""
		}
		if f, _ := r.run(); f.Code != runner.ExitHopeless {
			t.Errorf("finish %+v", f)
		}
		r.verify()
	})
}

func onceLast(w runner.Worker, fault drivetest.Fault) func(*drivetest.Process, runner.Order) drivetest.Fault {
	var first atomic.Bool
	return func(p *drivetest.Process, o runner.Order) drivetest.Fault {
		if o, ok := o.(runner.Train); ok && o.Last && p.Life().Worker == w && first.CompareAndSwap(false, true) {
			return fault
		}
		return ""
	}
}

func TestBudget(t *testing.T) {
	for w, reason := range map[runner.Worker]string{target: "target/0 died", drafter1: "drafter/1 died"} {
		bubble(t, w.String(), func(t *testing.T, r *rig) {
			r.launcher.Fault = func(p *drivetest.Process, o runner.Order) drivetest.Fault {
				if _, pull := o.(runner.Pull); p.Life().Worker == w && (pull || w == target) {
					return drivetest.Die
				}
				return ""
			}
			f, v := r.run()
			if f.Code != runner.ExitFailed || !strings.Contains(f.Reason, reason) || len(v.Failures) != 4 {
				t.Errorf("finish %+v, %d failures", f, len(v.Failures))
			}
			r.verify()
		})
	}
}

func TestStop(t *testing.T) {
	stop := func(r *rig, n runner.Step, quick bool) {
		var first sync.Once
		r.seen = func(l *drive.Loop, e runner.Event) {
			if e.Step >= n {
				first.Do(func() { l.Stop(quick, "signal terminated") })
			}
		}
	}
	bubble(t, "gracefully, and resumed", func(t *testing.T, r *rig) {
		stop(r, 3, false)
		f, v := r.run()
		if f.Code != runner.ExitStopped || v.Step < 3 || v.Step > 4 || len(v.Failures) != 0 {
			t.Fatalf("finish %+v at step %d, failures %+v", f, v.Step, v.Failures)
		}
		if last := v.Checkpoints[len(v.Checkpoints)-1]; last.Step != v.Step {
			t.Errorf("stopped at step %d, the last checkpoint is of %d", v.Step, last.Step)
		}
		r.verify()
		r.seen = nil
		f, v = r.run()
		r.wholeRun(f, v)
	})
	bubble(t, "quickly, and resumed", func(t *testing.T, r *rig) {
		stop(r, 3, true)
		began := time.Now()
		f, v := r.run()
		if f.Code == runner.ExitDone || time.Since(began) > time.Minute || len(v.Failures) != 0 {
			t.Fatalf("finish %+v after %v, failures %+v", f, time.Since(began), v.Failures)
		}
		r.verify()
		r.seen = nil
		f, v = r.run()
		r.wholeRun(f, v)
	})
	bubble(t, "before anything", func(t *testing.T, r *rig) {
		r.launcher.Before = func(ctx context.Context, l runner.Life) error {
			if l.Worker == target {
				r.loop.Stop(false, "signal terminated")
			}
			return nil
		}
		if f, v := r.run(); f.Code == runner.ExitDone || v.Step != 0 {
			t.Errorf("finish %+v at step %d", f, v.Step)
		}
	})
	bubble(t, "a worker does not drain", func(t *testing.T, r *rig) {
		stop(r, 3, false)
		r.launcher.Fault = once(drafter0, "drain", 1, drivetest.Hang)
		began := time.Now()
		f, v := r.run()
		if took := time.Since(began); f.Code != runner.ExitStopped || took < 30*time.Second || took > time.Minute {
			t.Errorf("finish %+v after %v", f, took)
		}
		if last := v.Checkpoints[len(v.Checkpoints)-1]; last.Step != v.Step {
			t.Errorf("stopped at step %d, the last checkpoint is of %d", v.Step, last.Step)
		}
		r.verify()
	})
	bubble(t, "twice: the second is quick", func(t *testing.T, r *rig) {
		stop(r, 3, false)
		r.launcher.Fault = func(p *drivetest.Process, o runner.Order) drivetest.Fault {
			if _, drain := o.(runner.Drain); drain {
				r.loop.Stop(true, "second signal")
				return drivetest.Hang
			}
			return ""
		}
		began := time.Now()
		if f, v := r.run(); f.Code != runner.ExitStopped || time.Since(began) > 20*time.Second || len(v.Failures) != 0 {
			t.Errorf("finish %+v after %v, failures %+v", f, time.Since(began), v.Failures)
		}
		r.verify()
	})
}
