package drive_test

import (
	"flag"
	"runtime"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

var flatSteps = flag.Uint64("drive.steps", 2_000, "steps of TestI9_FlatOverSteps; 100,000 take some minutes")

// TestI9_FlatOverSteps: what the supervisor holds does not grow with the steps
// that it has behind it: neither memory nor goroutines.
func TestI9_FlatOverSteps(t *testing.T) {
	steps := *flatSteps
	if testing.Short() {
		steps = min(steps, 500)
	}
	bubble(t, "memory and goroutines", func(t *testing.T, r *rig) {
		r.config.Core.Steps, r.rows.Schedule.Total = runner.Step(steps), steps
		r.config.Core.Evaluation = core.Evaluation{}
		r.config.Core.HorizonSteps, r.config.Core.ImageEvery, r.config.Core.Checkpoint = 32, 8, 100
		var heap, goroutines [2]uint64
		at := [2]runner.Step{runner.Step(steps / 4), runner.Step(steps - 5)}
		r.config.Observe = func(e runner.Event) { // not the rig's, which keeps all events
			for i := range at {
				if e.Name == "step decided" && e.Step == at[i] {
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					heap[i], goroutines[i] = m.HeapAlloc, uint64(runtime.NumGoroutine())
				}
			}
		}
		f, v := r.run()
		if f.Code != runner.ExitDone || v.Step != runner.Step(steps) {
			t.Fatalf("finish %+v at step %d, failures %+v", f, v.Step, v.Failures)
		}
		t.Logf("%d steps: %d to %d KiB, %d to %d goroutines", steps, heap[0]>>10, heap[1]>>10, goroutines[0], goroutines[1])
		if heap[0] == 0 || heap[1] > heap[0]+256<<10 {
			t.Errorf("want memory as it was, got %d KiB and then %d KiB", heap[0]>>10, heap[1]>>10)
		}
		if goroutines[1] > goroutines[0]+3 { // an image may be taken at either moment
			t.Errorf("want goroutines as they were, got %d and then %d", goroutines[0], goroutines[1])
		}
		if rep := r.verify(); rep.Committed != runner.Step(steps) {
			t.Errorf("the journal holds %+v", rep)
		}
	})
}
