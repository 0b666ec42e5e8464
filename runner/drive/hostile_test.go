package drive_test

import (
	"sync/atomic"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// TestI9_LyingHandles: a handle that is not of the slot that was leased costs
// the life that gave it, and nothing else: nobody reads by it.
func TestI9_LyingHandles(t *testing.T) {
	for how, name := range []string{"another version", "a slot that is not there", "another row", "a foreign arena", "past the slot's end"} {
		bubble(t, name, func(t *testing.T, r *rig) {
			r.launcher.Fault = once(target, "produce", 3, drivetest.Lie)
			r.launcher.How = func(*drivetest.Process) int { return how }
			f, v := r.run()
			r.wholeRun(f, v)
			if len(v.Failures) != 1 || v.Failures[0].Worker != target || v.Failures[0].Cause != runner.CauseProtocol {
				t.Errorf("failures %+v", v.Failures)
			}
		})
	}
	bubble(t, "a slot of another target", func(t *testing.T, r *rig) {
		r.config.Core.Workers = append(r.config.Core.Workers[:1:1], append(r.config.Core.Workers[:1:1], r.config.Core.Workers[1:]...)...)
		r.config.Core.Workers[1].Worker.Rank = 1
		r.config.Core.Devices["cpu"] = 4
		var lied atomic.Bool
		r.launcher.Fault = func(_ *drivetest.Process, o runner.Order) drivetest.Fault { // by either: one of them may make all rows
			if runner.OrderType(o) == "produce" && lied.CompareAndSwap(false, true) {
				return drivetest.Lie
			}
			return ""
		}
		r.launcher.How = func(*drivetest.Process) int { return 5 }
		f, v := r.run()
		r.wholeRun(f, v)
		if len(v.Failures) != 1 || v.Failures[0].Worker.Role != runner.Target || v.Failures[0].Cause != runner.CauseProtocol {
			t.Errorf("failures %+v", v.Failures)
		}
	})
}
