package drive_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// TestCostOfADeath: what a death costs is counted in micro-steps that are
// trained a second time. One drafter's costs the survivors the open step at the
// most, all drafters' the steps since the newest image; a target's costs none.
func TestCostOfADeath(t *testing.T) {
	const perStep = 4 // micro-steps of a step, of both drafters
	for _, c := range []struct {
		name    string
		workers []runner.Worker
		most    int64 // micro-steps of drafters that are ordered again
		undone  runner.Step
	}{
		{"nobody", nil, 0, 0},
		{"a target", []runner.Worker{target}, 0, 0},
		{"a drafter", []runner.Worker{drafter1}, perStep, 0},
		{"all drafters", []runner.Worker{drafter0, drafter1}, (2 + 1) * perStep, 2}, // images are taken every 2 steps
	} {
		for at := runner.Step(1); at <= 5; at++ {
			bubble(t, fmt.Sprintf("%s at step %d", c.name, at), func(t *testing.T, r *rig) {
				var trains atomic.Int64
				r.launcher.Fault = func(_ *drivetest.Process, o runner.Order) drivetest.Fault {
					if _, ok := o.(runner.Train); ok {
						trains.Add(1)
					}
					return ""
				}
				if c.workers != nil {
					r.atStep(at, (*drivetest.Process).Die, c.workers...)
				}
				f, v := r.run()
				r.wholeRun(f, v)
				if again := trains.Load() - 6*perStep; again < 0 || again > c.most {
					t.Errorf("%d micro-steps were trained again, want at most %d", again, c.most)
				}
				if e := r.event("restored"); e != nil && (c.undone == 0 || at > e.Step+c.undone+1) {
					t.Errorf("restored to step %d after a death at %d: %s", e.Step, at, e.Message)
				}
			})
		}
	}
}
