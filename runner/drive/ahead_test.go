package drive_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// thinks is the built-in with a plugin's time to answer.
type thinks struct {
	drive.Fixed
	took time.Duration
}

// Arrange takes its time.
func (s thinks) Arrange(ctx context.Context, epoch uint32, count, left int) ([]runner.Sample, error) {
	time.Sleep(s.took) // of the bubble's time
	return s.Fixed.Arrange(ctx, epoch, count, left)
}

// trained runs six steps whose orders take 10 ms each, of a horizon each, and
// gives the time from the first decision to the last.
func trained(t *testing.T, took time.Duration, ahead int) (spent time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.launcher.Wait = func(*drivetest.Process, runner.Order) time.Duration { return 10 * time.Millisecond }
		r.config.Core.HorizonSteps, r.config.Core.ArrangeAhead = 1, ahead
		r.config.Core.ImageEvery, r.config.Core.Checkpoint, r.config.Core.Evaluation.Every = 0, 0, 0
		r.config.Scheduler = thinks{drive.Fixed{Seed: 1, Samples: samplesBut7(), Draws: 1}, took}
		f, v := r.run()
		r.wholeRun(f, v)
		var at []time.Time
		for _, e := range r.events {
			if e.Name == "step decided" {
				at = append(at, e.At)
			}
		}
		if len(at) != 6 || !slices.IsSortedFunc(at, time.Time.Compare) {
			t.Fatalf("want six decisions in order, got %v", at)
		}
		spent = at[5].Sub(at[0])
	})
	return spent
}

// TestSlowAnswersCostNoStep: an order of samples that comes within the steps
// that it was asked ahead of costs none of them any time; asked when it is
// needed, it would.
func TestSlowAnswersCostNoStep(t *testing.T) {
	const slow = 60 * time.Millisecond
	quick, ahead, late := trained(t, 0, 0), trained(t, slow, 3), trained(t, slow, 0)
	t.Logf("five steps: %v at once, %v asked ahead, %v asked when needed", quick, ahead, late)
	if ahead >= quick+slow { // who comes first may cost a few orders' time
		t.Errorf("want about %v, got %v", quick, ahead)
	}
	if late < ahead+slow {
		t.Errorf("want the answers waited for, got %v against %v", late, ahead)
	}
}
