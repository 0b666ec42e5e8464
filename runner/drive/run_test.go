package drive_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

func TestWholeRun(t *testing.T) {
	bubble(t, "undisturbed", func(t *testing.T, r *rig) {
		f, v := r.run()
		r.wholeRun(f, v)
		if v.Lineage != 1 || len(v.Failures) != 0 || len(v.Worse) != 0 || len(v.Degraded) != 0 {
			t.Errorf("lineage %d, failures %v, worse %v, degraded %v", v.Lineage, v.Failures, v.Worse, v.Degraded)
		}
		all, err := image.List(r.dir)
		if err != nil || len(all) < 2 {
			t.Fatalf("checkpoints %v: %v", all, err)
		}
		for _, c := range all {
			if _, err := image.Verify(c.Path); err != nil {
				t.Error(err)
			}
		}
		if last := all[len(all)-1]; last.Facts.Step != 6 {
			t.Errorf("the last checkpoint is of step %d", last.Facts.Step)
		}
		what := map[string]int{}
		for _, e := range v.Evaluations {
			what[e.What]++
		}
		if what["loss"] != 4 || what["decode"] != 2 || what["plain"] != 1 {
			t.Errorf("evaluations %v", what)
		}
		if n := len(r.launcher.All()); n != 3 {
			t.Errorf("%d lives", n)
		}
	})
}

// TestI2_GateWidth: no more warm up at once than the gate is wide, and so many do.
func TestI2_GateWidth(t *testing.T) {
	for width := 1; width <= 3; width++ {
		bubble(t, strconv.Itoa(width), func(t *testing.T, r *rig) {
			r.config.Core.GateWidth = width
			f, v := r.run()
			r.wholeRun(f, v)
			if n := r.launcher.MostWarming(); n != width {
				t.Errorf("%d workers warmed up at once", n)
			}
		})
	}
}

// TestI10_ReplicasThatDiffer: a drafter that applied a step as the others did
// not is found at the next image, and the run must not be tried again.
func TestI10_ReplicasThatDiffer(t *testing.T) {
	bubble(t, "one commit", func(t *testing.T, r *rig) {
		r.launcher.Fault = once(drafter1, "commit", 3, drivetest.Drift)
		f, v := r.run()
		// The digests come beside the steps that follow, and before the next image at the latest.
		next := 4 + runner.Step(r.config.Core.ImageEvery)
		if f.Code != runner.ExitHopeless || v.Step < 4 || v.Step > next || !strings.Contains(f.Reason, "drafters differ at step 4") {
			t.Errorf("finish %+v at step %d", f, v.Step)
		}
		r.verify()
	})
}

func TestCheckpointOnRequest(t *testing.T) {
	bubble(t, "once", func(t *testing.T, r *rig) {
		r.config.Core.Checkpoint, r.config.Core.KeepLast, r.config.Core.Evaluation = 0, 5, core.Evaluation{}
		var first sync.Once
		r.seen = func(l *drive.Loop, e runner.Event) {
			if e.Step == 2 {
				first.Do(l.Checkpoint)
			}
		}
		f, v := r.run()
		r.wholeRun(f, v)
		if len(v.Checkpoints) != 2 || v.Checkpoints[0].Step < 3 || v.Checkpoints[0].Step > 4 {
			t.Errorf("asked at step 2, the checkpoints are %+v", v.Checkpoints)
		}
	})
	bubble(t, "where no image can be made", func(t *testing.T, r *rig) {
		r.config.Core.Checkpoint, r.config.Core.ImageEvery, r.config.Core.KeepLast, r.config.Core.Evaluation = 0, 6, 5, core.Evaluation{}
		var first sync.Once
		r.memory.RefuseImage = func() (err error) {
			first.Do(func() { err = runner.Errorf(runner.Exhausted, "no room") })
			return err
		}
		var asked sync.Once
		r.seen = func(l *drive.Loop, e runner.Event) {
			if e.Step == 2 {
				asked.Do(l.Checkpoint)
			}
		}
		f, v := r.run()
		r.wholeRun(f, v)
		if len(v.Checkpoints) != 2 || v.Checkpoints[0].Step < 4 || v.Checkpoints[0].Step > 5 {
			t.Errorf("asked at step 2, refused memory once, the checkpoints are %+v", v.Checkpoints)
		}
	})
}

func TestResumeIsAsIfUndisturbed(t *testing.T) {
	var whole runner.Chain
	bubble(t, "in one go", func(t *testing.T, r *rig) {
		f, v := r.run()
		r.wholeRun(f, v)
		whole = v.Chain
	})
	bubble(t, "stopped and resumed", func(t *testing.T, r *rig) {
		r.config.Core.Steps = 3
		if f, v := r.run(); f.Code != runner.ExitDone || v.Step != 3 {
			t.Fatalf("finish %+v at step %d", f, v.Step)
		}
		r.config.Core.Steps = 6
		f, v := r.run()
		r.wholeRun(f, v)
		if v.Lineage != 2 || v.Chain != whole {
			t.Errorf("lineage %d; chain %x, undisturbed %x", v.Lineage, v.Chain[:4], whole[:4])
		}
	})
	bubble(t, "every checkpoint is bad", func(t *testing.T, r *rig) {
		r.config.Core.Steps = 3
		r.run()
		all, err := filepath.Glob(filepath.Join(r.dir, "step-*", image.ImageFile))
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		for _, name := range all {
			if err := os.Truncate(name, 100); err != nil {
				t.Fatal(err)
			}
		}
		r.config.Core.Steps = 6
		f, v := r.run()
		r.wholeRun(f, v)
		if r.event("checkpoint is bad") == nil {
			t.Error("nothing tells of the bad checkpoint")
		}
	})
}
