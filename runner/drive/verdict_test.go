package drive_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// coroner is the built-in that judges deaths besides.
type coroner struct {
	drive.Scheduler
	asked *atomic.Int64
	says  func(ctx context.Context, q core.Judge) (core.Verdict, error)
}

func (c coroner) OnFailure(ctx context.Context, q core.Judge) (core.Verdict, error) {
	c.asked.Add(1)
	return c.says(ctx, q)
}

// TestI6_Verdicts: whatever is said of a death, and whenever, the run is whole
// or ends as it was told to; what is late or wrong is counted and shown.
func TestI6_Verdicts(t *testing.T) {
	say := func(v core.Verdict, err error) func(context.Context, core.Judge) (core.Verdict, error) {
		return func(context.Context, core.Judge) (core.Verdict, error) { return v, err }
	}
	after := func(d time.Duration, v core.Verdict) func(context.Context, core.Judge) (core.Verdict, error) {
		return func(context.Context, core.Judge) (core.Verdict, error) {
			time.Sleep(d) // the bubble's time; it does not look at ctx
			return v, nil
		}
	}
	replace := core.Verdict{Decision: core.VerdictReplace, Device: "spare"}
	for _, c := range []struct {
		name   string
		says   func(context.Context, core.Judge) (core.Verdict, error)
		device string // of drafter/1's second life
		policy bool
		worse  string // part of what is shown; empty: nothing
		code   int
	}{
		{"restart", say(core.Verdict{Decision: core.VerdictRestart}, nil), "cpu", false, "", 0},
		{"replace", say(replace, nil), "spare", false, "", 0},
		{"replace, after the backoff", after(1500*time.Millisecond, replace), "cpu", true, "", 0},
		{"too late for its deadline", after(600*time.Millisecond, replace), "cpu", true, "no answer within 500ms", 0},
		{"an error", say(core.Verdict{}, errors.New("no idea")), "cpu", true, "no idea", 0},
		{"left to the built-in", say(replace, drive.ErrDeclined), "cpu", true, "", 0},
		{"a device that was not offered", say(core.Verdict{Decision: core.VerdictReplace, Device: "moon"}, nil), "cpu", true, `want one of [spare], got "moon"`, 0},
		{"a word of its own", say(core.Verdict{Decision: "bury"}, nil), "cpu", true, `want restart, replace or stop, got "bury"`, 0},
		{"stop", say(core.Verdict{Decision: core.VerdictStop, Reason: "it is hot"}, nil), "", false, "", runner.ExitFailed},
		{"stop, after the backoff", after(1500*time.Millisecond, core.Verdict{Decision: core.VerdictStop, Reason: "it is hot"}), "cpu", false, "", runner.ExitFailed},
		{"stop, after the backoff", after(1500*time.Millisecond, core.Verdict{Decision: core.VerdictStop, Reason: "it is hot"}), "cpu", false, "", runner.ExitFailed},
	} {
		bubble(t, c.name, func(t *testing.T, r *rig) {
			k := coroner{Scheduler: drive.Fixed{Seed: 1, Samples: samplesBut7(), Draws: 1}, asked: &atomic.Int64{}, says: c.says}
			r.config.Scheduler, r.config.Core.AskVerdicts = k, true
			r.config.Core.Devices["spare"] = 1
			if strings.Contains(c.worse, "within") {
				r.config.SchedulerDeadline = 500 * time.Millisecond
			}
			r.config.Core.Spares = map[runner.Role][]string{runner.Drafter: {"spare"}}
			r.launcher.Fault = once(drafter1, "train", 4, drivetest.Die)
			f, v := r.run()
			if c.code == runner.ExitDone {
				r.wholeRun(f, v)
			} else if f.Code != c.code || !strings.HasSuffix(f.Reason, "the scheduling plugin ends the run: it is hot") || len(v.Checkpoints) == 0 {
				t.Errorf("finish %+v, checkpoints %+v", f, v.Checkpoints)
			}
			if k.asked.Load() != 1 {
				t.Errorf("asked %d times", k.asked.Load())
			}
			if got := r.launcher.Device(runner.Life{Worker: drafter1, Generation: 2}); got != c.device {
				t.Errorf("drafter/1.2 on %q, want %q", got, c.device)
			}
			if v.Verdicts.Last.Policy != c.policy {
				t.Errorf("verdicts %+v, want by the policy: %v", v.Verdicts, c.policy)
			}
			if got := v.Worse["scheduler"]; (c.worse == "") != (got == "") || !strings.Contains(got, c.worse) {
				t.Errorf("worse %q, want %q", got, c.worse)
			}
		})
	}
}
