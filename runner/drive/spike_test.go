package drive_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// atVote gives a fault to a drafter's votes on steps that pick accepts.
func atVote(w runner.Worker, fault drivetest.Fault, pick func(runner.Step) bool) func(*drivetest.Process, runner.Order) drivetest.Fault {
	return func(p *drivetest.Process, o runner.Order) drivetest.Fault {
		if o, ok := o.(runner.Train); ok && o.Last && p.Life().Worker == w && pick(o.Step) {
			return fault
		}
		return ""
	}
}

// TestSpikeIsReported: a step out of all proportion is trained, and people are
// told which, of which row, while it is fresh.
func TestSpikeIsReported(t *testing.T) {
	bubble(t, "loss", func(t *testing.T, r *rig) {
		r.config.Core.Steps, r.rows.Schedule.Total = 24, 24
		r.config.Core.Evaluation = core.Evaluation{}
		r.config.Core.Spikes = core.Spikes{Loss: 3, Norm: 100}
		r.launcher.Fault = atVote(drafter1, drivetest.Spike, func(n runner.Step) bool { return n == 20 })
		f, v := r.run()
		if f.Code != runner.ExitDone || v.Step != 24 || len(v.Failures) != 0 {
			t.Fatalf("finish %+v at step %d, failures %+v", f, v.Step, v.Failures)
		}
		e := r.event("spike")
		if e == nil || e.Step != 20 || e.Level != runner.Warn || e.Row == 0 || !strings.Contains(e.Message, "times the median") || e.Hint == "" {
			t.Fatalf("the event is %+v", e)
		}
		if all := strings.Join(v.Degraded, "; "); !strings.Contains(all, "spike at step 20: loss") {
			t.Errorf("degraded for %q", all)
		}
		r.verify()
	})
}

// TestNonFiniteKeepsTheLastGoodState: votes that are never finite again end the
// run with 93 and a checkpoint of the last step that was; the row is named.
func TestNonFiniteKeepsTheLastGoodState(t *testing.T) {
	bubble(t, "from step 4 on", func(t *testing.T, r *rig) {
		r.config.Core.NonFinite = 2
		r.launcher.Fault = atVote(drafter1, drivetest.NaN, func(n runner.Step) bool { return n >= 4 })
		var skipped runner.Row
		r.seen = func(_ *drive.Loop, e runner.Event) {
			if e.Name == "row skipped" {
				skipped = e.Row
			}
		}
		f, v := r.run()
		if f.Code != runner.ExitHopeless || v.Step != 3 || skipped == 0 || !strings.HasSuffix(f.Reason, fmt.Sprintf("for row %d", skipped)) {
			t.Fatalf("finish %+v at step %d, row %d was skipped last", f, v.Step, skipped)
		}
		last := v.Checkpoints[len(v.Checkpoints)-1]
		if last.Step != 3 {
			t.Fatalf("the last checkpoint is of step %d, want 3", last.Step)
		}
		if facts, err := image.Verify(filepath.Join(r.store.Dir, last.Name)); err != nil || facts.Step != 3 {
			t.Errorf("it holds %+v, %v", facts, err)
		}
		r.verify()
		r.launcher.Fault, r.seen = nil, nil
		if f, v := r.run(); f.Code != runner.ExitDone || v.Step != 6 {
			t.Errorf("resumed with what was at fault gone: finish %+v at step %d", f, v.Step)
		}
	})
}
