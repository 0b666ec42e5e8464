package worker_test

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/runner"
	judge "github.com/dflash-runner/dflash-runner/runner/hang"
)

// watched judges a real process as the supervisor does, for at most a time: the
// verdict that it was ended for, or the last.
func watched(t *testing.T, p *worker.Process, phase judge.Phase, atMost time.Duration) (judge.Verdict, string) {
	t.Helper()
	limits := judge.Limits{Heartbeat: 5 * time.Second, WarmUp: 3 * time.Second}
	began, track := time.Now(), judge.Track{}
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	for {
		now := <-every.C
		e := judge.Evidence{Vitals: p.Vitals(true), Phase: phase, What: "warm-up", Progress: now.Sub(began)}
		track, e.Cores, e.Quiet = track.Look(now, e.Vitals, began)
		v, reasons := judge.Judge(e, limits)
		if v == judge.Hung || now.Sub(began) > atMost {
			return v, strings.Join(reasons, "; ")
		}
	}
}

// TestHangs: of real processes that all do not answer, those hang that are
// stopped or deadlocked, and not those that compute, by themselves or by a child.
func TestHangs(t *testing.T) {
	for which, c := range map[string]struct {
		want judge.Verdict
		why  string
	}{
		"deadlock":       {judge.Hung, "no progress in warm-up"},
		"compute":        {judge.Busy, ""},
		"child-computes": {judge.Busy, ""},
		"stray-computes": {judge.Busy, ""}, // a child in a group of its own
	} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			p := mustLaunch(t, which, nil)
			over := make(chan error, 1)
			go func() { _, err := p.WarmUp(t.Context(), nil); over <- err }()
			atMost := 6 * time.Second
			if c.want == judge.Hung {
				atMost = 40 * time.Second // on a machine under load its threads have much to wait for
			}
			got, why := watched(t, p, judge.WarmUp, atMost)
			if (got == judge.Hung) != (c.want == judge.Hung) || !strings.Contains(why, c.why) { // others on this machine may make it suspect
				t.Errorf("got %v, %q, want %v, %q", got, why, c.want, c.why)
			}
			p.DumpAndKill("it hangs: "+why, "")
			if err := <-over; err == nil {
				t.Error("the warm-up succeeded")
			}
			if f := end(t, p); f.Cause != runner.CauseDeadline || len(f.Traceback) == 0 {
				t.Errorf("report without stacks: %+v", f)
			}
		})
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		p := mustLaunch(t, "good", func(s *worker.Spec) { s.PingEvery = 100 * time.Millisecond })
		if err := syscall.Kill(p.Pid(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if got, why := watched(t, p, judge.Idle, 40*time.Second); got != judge.Hung || !strings.Contains(why, "no sign of life for ") || !strings.Contains(why, "its process is stopped") {
			t.Errorf("got %v, %q", got, why)
		}
	})
}

// TestVitalsOfTheGone: a process that was reaped is no live one.
func TestVitalsOfTheGone(t *testing.T) {
	p := mustLaunch(t, "good", nil)
	p.Kill(runner.CauseKilled, "", "")
	end(t, p)
	if exec.Command("kill", "-0", strconv.Itoa(p.Pid())).Run() == nil {
		t.Skip("its number is somebody else's already")
	}
	if v := p.Vitals(true); v.Counted || v.State != judge.Zombie {
		t.Errorf("got %+v", v)
	}
}
