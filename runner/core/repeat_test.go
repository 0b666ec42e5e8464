package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// dies ends worker i as a failure says, and has it reaped.
func (x *scene) dies(i int, f runner.Failure) {
	x.t.Helper()
	p := &x.procs[i]
	if !p.up {
		x.t.Fatalf("worker %d does not run\n%s", i, x.history())
	}
	l := p.life
	*p = proc{}
	x.touches = slices.DeleteFunc(x.touches, func(t touch) bool { return t.life == l })
	f.Worker, f.Generation = l.Worker, l.Generation
	x.give(Exited{Life: l, Failure: &f})
}

// A death that a restart cannot help ends the run with 93; any other is borne.
func TestRepeatedDeaths(t *testing.T) {
	raised := runner.Failure{Cause: runner.CausePython, Message: "ValueError: row 12 at 0x7f00 is bad"}
	other := runner.Failure{Cause: runner.CausePython, Message: "KeyError: 'x'"}
	killed := runner.Failure{Cause: runner.CauseSignal, Signal: "SIGKILL", Message: "killed by SIGKILL"}
	crashed := runner.Failure{Cause: runner.CauseSignal, Signal: "SIGSEGV", Message: "killed by SIGSEGV"}
	late := runner.Failure{Cause: runner.CauseDeadline, Message: "no answer", ForcedBySelf: true}
	training := func(i int) func(*world) bool { return holding(i, is[runner.Train]) }
	twice := func(i int, at func(*world) bool, first, second runner.Failure) func(*scene) {
		return func(x *scene) {
			x.until(at)
			x.dies(i, first)
			x.until(at)
			x.dies(i, second)
		}
	}
	moved := raised
	moved.Message = "ValueError: row 12 at 0x7fff is bad" // the same but for an address
	for _, c := range []struct {
		name string
		do   func(*scene)
		code int
		want string
	}{
		{"the same twice", twice(1, training(1), raised, moved), runner.ExitHopeless, "drafter/0.1 and drafter/0.2 died of the same cause at the same work (train step 1 micro 0 row 1)"},
		{"a crash twice", twice(1, training(1), crashed, crashed), runner.ExitHopeless, "SIGSEGV"},
		{"another message", twice(1, training(1), raised, other), runner.ExitDone, ""},
		{"a signal from outside", twice(1, training(1), killed, killed), runner.ExitDone, ""},
		{"too late", twice(1, training(1), late, late), runner.ExitDone, ""},
		{"at a start", twice(0, func(w *world) bool { return w.procs[0].warming }, raised, raised), runner.ExitHopeless, "(warm-up)"},
		{"the row of a target, by whoever makes it", func(x *scene) {
			x.until(holding(0, is[runner.Produce]))
			x.dies(0, raised)
			row := x.core.repeats[0].doing
			x.until(func(w *world) bool {
				return w.core.workers[0].life.Generation == 2 && holding(0, is[runner.Produce])(w)
			})
			if doing, _, _ := x.core.workers[0].doing(); doing != row {
				x.t.Fatalf("it makes %s, want %s", doing, row)
			}
			x.dies(0, raised)
		}, runner.ExitHopeless, "produce row 1"},
		{"two at once, which may be one cause outside", func(x *scene) {
			x.until(func(w *world) bool { return holding(1, is[runner.Join])(w) && holding(2, is[runner.Join])(w) })
			x.dies(1, raised)
			x.dies(2, raised)
		}, runner.ExitDone, ""},
		{"one start worked in between", func(x *scene) {
			x.until(func(w *world) bool { return w.procs[1].warming })
			x.dies(1, raised)
			x.until(training(1))
			x.dies(1, killed)
			x.until(func(w *world) bool { return w.procs[1].warming })
			x.dies(1, raised)
		}, runner.ExitDone, ""},
		{"what the worker itself calls passing", func(x *scene) {
			for range 2 {
				x.until(holding(0, is[runner.Produce]))
				x.answer(0, is[runner.Produce], runner.Failed{Kind: runner.Unavailable, Message: "busy"})
				x.dies(0, raised)
			}
		}, runner.ExitDone, ""},
		{"an abort that leaves the device broken, twice", func(x *scene) {
			for range 2 {
				x.until(func(w *world) bool { return holding(1, lastTrain)(w) && holding(2, lastTrain)(w) })
				x.answer(2, lastTrain, runner.Failed{Kind: runner.Unavailable, Message: "no"})
				x.answer(1, is[runner.Abort], runner.Aborted{Step: 1})
				x.dies(1, runner.Failure{Cause: runner.CauseCUDA, Message: "it could not prove its device's context after an abort", ForcedBySelf: true})
			}
		}, runner.ExitDone, ""},
		{"what the worker says is wrong", func(x *scene) {
			for range 2 {
				x.until(holding(0, is[runner.Produce]))
				x.answer(0, is[runner.Produce], runner.Failed{Kind: runner.Internal, Message: "bad"})
				x.dies(0, raised)
			}
		}, runner.ExitHopeless, "produce row 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, two, func(*world) bool { return true })
			c.do(x)
			if f := x.over(); f.Code != c.code || !strings.Contains(f.Reason, c.want) {
				t.Errorf("ended with %+v, want code %d and %q\n%s", f, c.code, c.want, x.history())
			}
		})
	}
}

// The first death of a run that starts nothing again saves and ends.
func TestOnFailureStop(t *testing.T) {
	s := two
	s.tune = func(c *Config) { c.Restart.Never = true }
	x := stage(t, s, func(w *world) bool { return w.core.decided == 1 })
	x.dies(0, runner.Failure{Cause: runner.CauseOOM, Message: "killed for memory"})
	f := x.over()
	if want := "target/0.1 died, and nothing is started again (workers.on_failure: stop): oom: killed for memory"; f.Code != runner.ExitFailed || f.Reason != want {
		t.Errorf("ended with %+v, want code %d and %q", f, runner.ExitFailed, want)
	}
	if n := count(x, func(a Launch) bool { return a.Life.Generation > 1 }); n > 0 {
		t.Errorf("%d lives were started again", n)
	}
}

// A barred device keeps what runs there and starts nothing again: others make
// the rows, and without a drafter there is no going on.
func TestBarredDevice(t *testing.T) {
	s := two
	s.targets = 2
	s.tune = func(c *Config) {
		c.Devices = map[string]int{"gpu-a": 2, "gpu-b": 2}
		for i := range c.Workers {
			c.Workers[i].Device = map[bool]string{true: "gpu-a", false: "gpu-b"}[i == 0]
		}
	}
	x := stage(t, s, holding(0, is[runner.Produce]))
	x.give(DeviceUnfit{Device: "gpu-a", Reason: "it is lost"})
	if ks := x.kills(); len(ks) > 0 {
		t.Fatalf("what runs was killed: %+v", ks)
	}
	x.dies(0, runner.Failure{Cause: runner.CauseCUDA, Message: "CUDA error"})
	if v := x.core.View(); !strings.Contains(strings.Join(v.Degraded, "; "), "gpu-a is not used again: it is lost") || v.Workers[0].State != "failed" {
		t.Errorf("shown as %q, %s", v.Degraded, v.Workers[0].State)
	}
	x.until(func(w *world) bool { return w.core.decided == 1 && holding(2, is[runner.Train])(w) })
	x.dies(2, runner.Failure{Cause: runner.CauseSignal, Signal: "SIGKILL"}) // its device is well
	x.until(func(w *world) bool { return w.core.workers[2].life.State.Running() })
	x.give(DeviceUnfit{Device: "gpu-b", Reason: "the driver asks for: gpu reset"})
	x.dies(2, runner.Failure{Cause: runner.CauseCUDA, Message: "CUDA error"})
	if f := x.over(); f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "drafter/0 cannot be started again: gpu-b is not used again") {
		t.Errorf("ended with %+v", f)
	}
}

// Who waits to start again on a device that is barred meanwhile has failed.
func TestBarredInBackoff(t *testing.T) {
	s := two
	s.tune = func(c *Config) { c.Restart.Base = time.Minute }
	x := stage(t, s, holding(0, is[runner.Produce]))
	x.dies(0, runner.Failure{Cause: runner.CauseCUDA, Message: "CUDA error"})
	x.give(DeviceUnfit{Device: "target/0", Reason: "it is lost"})
	if f := x.over(); f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "target/0 cannot be started again: target/0 is not used again: it is lost") {
		t.Errorf("ended with %+v", f)
	}
}

// Deaths in one communicator belong together, and the first of them is named.
func TestIncidents(t *testing.T) {
	x := stage(t, two, func(w *world) bool { return holding(1, lastTrain)(w) && holding(2, lastTrain)(w) })
	x.dies(2, runner.Failure{Cause: runner.CauseOOM})
	x.answer(1, lastTrain, runner.Failed{Kind: runner.Fatal, Message: "NCCL error"})
	x.dies(1, runner.Failure{Cause: runner.CauseCUDA, ForcedBySelf: true})
	x.until(holding(0, is[runner.Produce]))
	x.dies(0, runner.Failure{Cause: runner.CauseSignal})
	fs := x.core.figures.failures
	if len(fs) != 3 || fs[0].Incident != 1 || fs[1].Incident != 1 || fs[2].Incident != 2 || fs[0].Follows != "" || fs[1].Follows != "drafter/1.1" || fs[2].Follows != "" ||
		!strings.HasPrefix(fs[1].Doing, "train step 1") || !strings.HasPrefix(fs[2].Doing, "produce row") {
		t.Errorf("got %+v", fs)
	}
}
