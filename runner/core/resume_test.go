package core

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// leave ends a scene's supervisor at a moment; what was durable is left.
func (x *scene) leave() *Resume {
	x.journal = x.journal[: x.base+x.durable : x.base+x.durable]
	return resumeOf(x.journal, x.disk)
}

func TestResumeRefusesWhatDoesNotFit(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 2, checkpoint: 1, budget: 9}
	for _, c := range []struct {
		name string
		do   func(*setup, *Resume)
		want string
	}{
		{"another number of drafters", func(s *setup, _ *Resume) { s.drafters = 3 }, "want rows for 3 drafters, got 2"},
		{"a plan missing", func(_ *setup, r *Resume) { r.Plans = append(r.Plans[:1:1], r.Plans[2:]...) }, "want step 2 after step 1"},
		{"more samples than the data has", func(s *setup, _ *Resume) { s.steps = 1 }, "feed the journal's samples"},
		{"fewer samples than its plans need", func(_ *setup, r *Resume) { r.Arranged = r.Arranged[:1] }, "the journal plans 3 steps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, s, func(w *world) bool { return w.finished != nil })
			r, other := x.leave(), s
			c.do(&other, r)
			if _, err := New(other.config(r)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// A checkpoint that is bad, or that the journal does not explain, is passed
// over for the one before.
func TestResumePassesOverBadCheckpoints(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 4, slots: 2, checkpoint: 1, budget: 9, verbose: true}
	for name, spoil := range map[string]func(*scene, *Resume){
		"bad":             func(x *scene, _ *Resume) { x.disk = x.disk[:len(x.disk)-1] }, // opening it fails
		"not explained":   func(_ *scene, r *Resume) { r.Checkpoints[len(r.Checkpoints)-1].Chain[0]++ },
		"of a later step": func(_ *scene, r *Resume) { r.Checkpoints[len(r.Checkpoints)-1].Step = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			x := stage(t, s, func(w *world) bool { return len(resumeOf(w.journal[:w.base+w.durable], w.disk).Checkpoints) == 2 })
			r := x.leave()
			spoil(x, r)
			x.acts = nil
			x.start(r)
			restores := 0
			for _, a := range x.acts {
				if a, ok := a.(Append); ok {
					if r, ok := a.Record.(runner.RestoreRecord); ok {
						restores++
						if r.Step != 1 || r.Lineage != 2 {
							t.Errorf("restored to step %d in lineage %d, want 1 and 2", r.Step, r.Lineage)
						}
					}
				}
			}
			if restores != 1 {
				t.Errorf("%d restores were recorded, want 1", restores)
			}
			if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
				t.Errorf("finished with %+v %s\n%s", f, x.bad, x.history())
			}
		})
	}
}

// A finished run that is resumed trains nothing and ends well.
func TestResumeOfAFinishedRun(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 2, slots: 2, checkpoint: 1, budget: 9, verbose: true}
	x := stage(t, s, func(w *world) bool { return w.finished != nil })
	r := x.leave()
	x.finished, x.acts = nil, nil
	x.start(r)
	if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
		t.Fatalf("finished with %+v %s", f, x.bad)
	}
	if n := count(x, func(s Send) bool { return is[runner.Train](s.Order) }); n > 0 {
		t.Errorf("%d micro-steps were trained again", n)
	}
}

// A run that is told to stop while it opens the checkpoint to restore from ends
// without that restore: nothing follows the end's record, whether the
// checkpoint turns out to be good or bad.
func TestStopWhileRestoring(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 3, slots: 2, checkpoint: 1, budget: 9}
	for name, then := range map[string]func(ImageID) Input{
		"good": func(i ImageID) Input { return ImageMade{Image: i} },
		"bad":  func(i ImageID) Input { return ImageFailed{Image: i, Err: runner.Errorf(runner.Invalid, "torn")} },
	} {
		t.Run(name, func(t *testing.T) {
			x := stage(t, s, func(w *world) bool { return len(w.disk) == 1 })
			c, err := New(s.config(x.leave()))
			if err != nil {
				t.Fatal(err)
			}
			acts := c.Handle(t0, Begin{})
			var opened ImageID
			for _, a := range acts {
				if o, ok := a.(OpenImage); ok {
					opened = o.Image
				}
			}
			if opened == 0 {
				t.Fatalf("want a checkpoint opened, got %+v", acts)
			}
			inputs := []Input{StopRequested{Reason: "the test"}}
			for _, a := range acts {
				if l, ok := a.(Launch); ok {
					inputs = append(inputs, Exited{Life: l.Life})
				}
			}
			for _, in := range append(inputs, Durable{UpTo: 1}, then(opened)) {
				acts = append(acts, c.Handle(t0, in)...)
			}
			var records []string
			for _, a := range acts {
				if r, ok := a.(Append); ok {
					records = append(records, fmt.Sprintf("%T", r.Record))
				}
			}
			if len(records) == 0 || records[len(records)-1] != "runner.EndRecord" {
				t.Errorf("want the end's record last, got %v", records)
			}
		})
	}
}

// A checkpoint that was renamed just before the supervisor died gets its record
// and is restored from; a stray one goes once another is published.
func TestResumeAdopts(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 4, slots: 2, checkpoint: 1, budget: 9, verbose: true}
	x := stage(t, s, func(w *world) bool { return len(w.disk) == 2 })
	r := x.leave()
	if len(r.Checkpoints) != 1 || len(r.Adopted) != 1 || r.Adopted[0].Step != 2 {
		t.Fatalf("the journal names %+v, the disk has %+v besides", r.Checkpoints, r.Adopted)
	}
	r.Strays = []string{"step-9"}
	x.acts = nil
	x.start(r)
	named := count(x, func(a Append) bool { c, ok := a.Record.(runner.CheckpointRecord); return ok && c == r.Adopted[0] })
	restored := count(x, func(a Append) bool { c, ok := a.Record.(runner.RestoreRecord); return ok && c.Step == 2 })
	if named != 1 || restored != 1 {
		t.Errorf("%d records of it and %d restores from it, want one of each", named, restored)
	}
	stray := func(a Unpublish) bool { return a.Name == "step-9" }
	if count(x, stray) != 0 {
		t.Error("the stray one is removed before another was published")
	}
	if f := x.over(); f.Code != runner.ExitDone || count(x, stray) != 1 || x.bad != "" {
		t.Errorf("finished with %+v, the stray one removed %d times %s\n%s", f, count(x, stray), x.bad, x.history())
	}
	for _, d := range x.core.View().Checkpoints {
		if d.Name == "step-9" {
			t.Error("the stray one is shown")
		}
	}
}

// A checkpoint that cannot be opened is said until another one is there, and so
// is what a restore undoes: the run goes on as if nothing were.
func TestABadCheckpointIsSaid(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 3, slots: 2, checkpoint: 1, budget: 9}
	x := stage(t, s, func(w *world) bool { return len(w.disk) == 2 })
	r := x.leave()
	c, err := New(s.config(r))
	if err != nil {
		t.Fatal(err)
	}
	for acts := c.Handle(t0, Begin{}); len(acts) > 0; acts = acts[1:] {
		if o, ok := acts[0].(OpenImage); ok {
			acts = append(acts, c.Handle(t0, ImageFailed{Image: o.Image, Err: runner.Errorf(runner.Invalid, "torn")})...)
		}
	}
	v := c.View()
	if len(v.Degraded) != 2 {
		t.Fatalf("degraded: got %q, want two checkpoints", v.Degraded)
	}
	for _, d := range v.Degraded {
		if !strings.HasPrefix(d, "checkpoint ") || !strings.HasSuffix(d, " is bad: torn") {
			t.Errorf("degraded: got %q", d)
		}
	}
	if want := (Restored{Lineage: 2, Undone: r.Committed}); v.Restored != want || r.Committed < 2 {
		t.Errorf("restored: got %+v, want %+v", v.Restored, want)
	}
	if good := x.core.View(); good.Restored != (Restored{}) || len(good.Degraded) != 0 {
		t.Errorf("undisturbed: got %+v, %q", good.Restored, good.Degraded)
	}
}
