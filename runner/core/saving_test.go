package core

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

func stepsOf(ps []picture) (ns []runner.Step) {
	for _, p := range ps {
		ns = append(ns, p.step)
	}
	return ns
}

// The last two checkpoints stay, and the best by held-out loss. In the model
// the loss falls with each step; the test's own answers make step 2 the best.
func TestTheLastCheckpointsAndTheBestAreKept(t *testing.T) {
	for _, c := range []struct {
		name   string
		forget bool
		want   []runner.Step
	}{
		{"the best besides", false, []runner.Step{2, 6, 7}},
		{"the last alone", true, []runner.Step{6, 7}},
	} {
		t.Run(c.name, func(t *testing.T) { testKept(t, c.forget, c.want) })
	}
}

func testKept(t *testing.T, forget bool, want []runner.Step) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 7, slots: 2, checkpoint: 1, budget: 9,
		evaluation: Evaluation{Every: 1, Heldout: 4, HeldoutChunk: 4}}
	x := stage(t, s, func(*world) bool { return true })
	x.core.cfg.ForgetBest = forget
	for n := runner.Step(1); n <= 7; n++ {
		x.until(holding(0, is[runner.Evaluate]))
		loss := 5.0
		if n == 2 {
			loss = 1
		}
		x.answer(0, is[runner.Evaluate], runner.Evaluated{Step: n, What: "loss", Numerator: 4 * loss, Denominator: 4})
	}
	if f := x.over(); f.Code != runner.ExitDone {
		t.Fatalf("finished with %+v", f)
	}
	if got := stepsOf(x.disk); !slices.Equal(got, want) {
		t.Errorf("the disk holds steps %v, want %v", got, want)
	}
	v := x.core.View()
	if len(v.Evaluations) != 7 || len(v.Checkpoints) != len(want) || v.Checkpoints[0].Best == forget {
		t.Errorf("view shows %d evaluations and checkpoints %+v", len(v.Evaluations), v.Checkpoints)
	}
}

// A checkpoint that fails degrades the run, which goes on and tries the next.
func TestAFailedCheckpointDegradesUntilTheNext(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 3, slots: 2, checkpoint: 1, budget: 9}
	full := func(x *scene) {
		id := x.sending
		x.sending = 0
		x.give(Published{Image: id, Err: errors.New("no space left on device")})
	}
	x := stage(t, s, func(w *world) bool { return w.sending != 0 })
	full(x)
	if d := x.core.View().Degraded; len(d) != 1 || !strings.Contains(d[0], "checkpoint of step 1 failed: no space left") {
		t.Errorf("degraded for %q", d)
	}
	x.until(func(w *world) bool { return len(w.disk) == 1 })
	if d := x.core.View().Degraded; len(d) != 0 {
		t.Errorf("degraded for %q after a checkpoint that worked", d)
	}
	x.until(func(w *world) bool { return w.sending != 0 && w.pictureOf(w.sending).step == 3 })
	full(x)
	if f := x.over(); f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "checkpoint of step 3 failed") {
		t.Errorf("finished with %+v, want a failure: the last step is not on the disk", f)
	}
}

// Without memory for an image training goes on, degraded, but does not end well.
func TestNoMemoryForAnImage(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 3, slots: 2, imageEvery: 1, budget: 9}
	x := stage(t, s, func(*world) bool { return true })
	x.noMemory = true
	f := x.over()
	if f.Code != runner.ExitFailed || x.core.decided != 3 || !strings.Contains(f.Reason, "no image") {
		t.Errorf("finished with %+v after step %d, want a failure after step 3", f, x.core.decided)
	}
	if d := x.core.View().Degraded; len(d) != 3 {
		t.Errorf("degraded for %q, want a reason a step", d)
	}
}

// A checkpoint of a step that a restore has undone is of an older lineage: its
// step is published anew, and it takes no place among the last ones.
func TestARestoreUndoesLaterCheckpoints(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 5, slots: 2, checkpoint: 1, budget: 9}
	x := stage(t, s, func(w *world) bool { return len(w.core.disk) == 2 && w.core.disk[1].Step == 4 })
	c := x.core
	c.cfg.KeepLast = 1
	c.restored(3, c.disk[0].Chain)
	if !c.onDisk(3) || c.onDisk(4) || !c.checkpointDue(4) {
		t.Errorf("at step 3 again the disk holds step 3: %v, step 4: %v; step 4 is due: %v", c.onDisk(3), c.onDisk(4), c.checkpointDue(4))
	}
	c.out = nil
	c.thin()
	if len(c.disk) != 1 || c.disk[0].Step != 3 || len(c.out) != 1 || c.out[0] != Action(Unpublish{Name: "step-4"}) {
		t.Errorf("kept %+v, did %+v; want step 3 kept", c.disk, c.out)
	}
}

// A replacement needs an image of the decided step. Where there was no memory
// for it, one more is asked for once the replacement is ready; where there is
// none again the run ends, instead of waiting for ever.
func TestAReplacementWhoseImageCouldNotBeMade(t *testing.T) {
	for name, back := range map[string]bool{"memory comes back": true, "there is none again": false} {
		t.Run(name, func(t *testing.T) {
			s := setup{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 2, imageEvery: 1, budget: 9}
			x := stage(t, s, func(*world) bool { return true })
			x.noMemory = true
			x.until(func(w *world) bool { return w.core.noImage == 2 })
			x.die(&x.procs[2])
			x.noMemory = !back
			f := x.over()
			if back && f.Code != runner.ExitDone || !back && (f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "drafter/1 cannot be given the state of step 2")) {
				t.Errorf("finished with %+v at step %d", f, x.core.decided)
			}
		})
	}
}

// Two valid images stay in memory, and the plans that a restore to the older
// one follows.
func TestImagesInMemory(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 9, slots: 2, imageEvery: 2, budget: 9}
	x := stage(t, s, func(w *world) bool { return w.core.decided == 8 })
	var ns []runner.Step
	for _, im := range x.core.View().Images {
		if im.Valid {
			ns = append(ns, im.Step)
		}
	}
	if !slices.Equal(ns, []runner.Step{4, 6}) || x.core.plans[0].Plan.Step != 5 {
		t.Fatalf("at step 8 images %v and plans from %d on, want 4, 6 and 5", ns, x.core.plans[0].Plan.Step)
	}
	x.until(func(w *world) bool { return w.core.step.Phase.String() == "committing" })
	for _, i := range []int{1, 2} {
		x.crashed(&x.procs[i], false)
	}
	if x.core.decided != 6 && x.core.decided != 8 || x.core.lineage != 2 {
		t.Errorf("all drafters dead at step 8: restored to %d in lineage %d, want the newest image", x.core.decided, x.core.lineage)
	}
	if v := x.core.View(); v.Rows != 2*uint64(v.Step) || v.Tokens != 16*uint64(v.Step) {
		t.Errorf("after the restore to step %d %d rows and %d tokens count as committed", v.Step, v.Rows, v.Tokens)
	}
	if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
		t.Errorf("finished with %+v %s", f, x.bad)
	}
	if v := x.core.View(); v.Rows != 18 {
		t.Errorf("at the end %d rows count as committed, want 18", v.Rows)
	}
}

func TestEvaluationAddsUp(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 2, slots: 2, budget: 9,
		evaluation: Evaluation{AtStart: true, AtEnd: true, Heldout: 5, HeldoutChunk: 2, Prompts: 3, PromptChunk: 2, NewTokens: 4}}
	x := stage(t, s, func(*world) bool { return true })
	if f := x.over(); f.Code != runner.ExitDone {
		t.Fatalf("finished with %+v", f)
	}
	var got []runner.EvaluationRecord
	for _, r := range x.journal {
		if r, ok := r.(runner.EvaluationRecord); ok {
			got = append(got, r)
		}
	}
	want := []runner.EvaluationRecord{ // plain decoding once: the worker keeps the texts
		{Step: 0, What: "loss", Prompts: 5, Numerator: 5, Denominator: 5, Lossless: true},
		{Step: 0, What: "plain", Prompts: 3, Tokens: 24, Forwards: 6, Lossless: true},
		{Step: 0, What: "decode", Prompts: 3, Tokens: 24, Forwards: 6, Lossless: true},
		{Step: 2, What: "loss", Prompts: 5, Numerator: 2./3*2 + 1./3, Denominator: 5, Lossless: true},
		{Step: 2, What: "decode", Prompts: 3, Tokens: 24, Forwards: 6, Lossless: true},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if d := got[i].Numerator - want[i].Numerator; d > 1e-9 || d < -1e-9 {
			t.Errorf("record %d: numerator %v, want %v", i, got[i].Numerator, want[i].Numerator)
		}
		got[i].Numerator = want[i].Numerator
		if got[i] != want[i] {
			t.Errorf("record %d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

// An evaluation whose target dies begins anew, plain decoding first.
func TestAnEvaluationOutlivesItsTarget(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 1, slots: 2, budget: 9,
		evaluation: Evaluation{AtEnd: true, Prompts: 4, PromptChunk: 1, NewTokens: 4}}
	x := stage(t, s, holding(0, func(o runner.Order) bool {
		e, ok := o.(runner.Evaluate)
		return ok && e.What == "decode" && e.First == 2
	}))
	x.crashed(&x.procs[0], false)
	if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
		t.Fatalf("finished with %+v %s", f, x.bad)
	}
	for _, e := range x.core.View().Evaluations {
		if e.Prompts != 4 || e.Tokens != 32 {
			t.Errorf("%s counts %d prompts and %d tokens, want 4 and 32", e.What, e.Prompts, e.Tokens)
		}
	}
}

// commit{s+1} waits until all have taken their copy for the image of s, which it
// would change, and no longer: digests and writing go on beside.
func TestACommitWaitsForTheCopyOfTheImageBefore(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 2, imageEvery: 1, budget: 9}
	x := stage(t, s, func(*world) bool { return true })
	x.slowMemory = true
	never := func(runner.Order) bool { return false }
	x.settle(0, never)
	if x.core.decided != 1 || x.core.step.Judge() != step.Agreed {
		t.Fatalf("without its image step 1 was followed by step %d\n%s", x.core.decided, x.history())
	}
	x.give(ImageMade{Image: 1})
	x.step(1, is[runner.Image])
	if x.core.decided != 1 {
		t.Fatal("step 2 was decided before all had copied step 1")
	}
	x.step(2, is[runner.Image])
	if x.core.decided != 2 {
		t.Fatalf("step 2 was not decided when all had copied step 1\n%s", x.history())
	}
	if im := x.core.imageOf(1); im == nil || im.state != writing {
		t.Fatalf("the image of step 1 is %+v, want it being written beside step 3", im)
	}
}

// One image is written at a time: the next one, due at every step here, waits,
// and its step's commit with it, so that memory is bounded.
func TestOneImageIsWrittenAtATime(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 4, slots: 2, imageEvery: 1, budget: 9}
	x := stage(t, s, func(w *world) bool { return w.core.decided == 1 && holding(1, is[runner.Image])(w) })
	x.step(1, is[runner.Image])
	x.unsaved()
	if x.core.decided != 2 || x.core.keptBy() != holdImage || len(x.core.images) != 1 {
		t.Fatalf("decided step %d, kept by %d, %d images: want step 3 kept by the image of step 1\n%s", x.core.decided, x.core.keptBy(), len(x.core.images), x.history())
	}
	x.until(func(w *world) bool { return w.core.decided == 3 })
	if im := x.core.imageOf(1); im == nil || im.state != valid {
		t.Errorf("the image of step 1 is %+v, want it whole", im)
	}
}

// A worker that says saved before it said taken, or taken twice, or of another
// step, is ended: what it copied is not known.
func TestAnImageIsTakenThenSaved(t *testing.T) {
	saved := runner.Saved{Step: 1, Written: true}
	for name, said := range map[string][]runner.Reply{
		"saved alone":   {saved},
		"taken twice":   {runner.Taken{Step: 1}, runner.Taken{Step: 1}},
		"of the future": {runner.Taken{Step: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s := setup{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 2, imageEvery: 1, budget: 9}
			x := stage(t, s, func(w *world) bool { return w.core.decided == 1 && holding(1, is[runner.Image])(w) })
			x.answer(1, is[runner.Image], said...)
			x.expectKill("drafter/0", runner.CauseProtocol, "it answered image with a")
		})
	}
}

// An image whose copy is taken has its time from then on, however much its
// worker answers meanwhile.
func TestAnImageThatIsNeverWritten(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 9, slots: 2, imageEvery: 3, budget: 9}
	s.tune = func(c *Config) { c.Deadlines.Image = 5 * time.Minute }
	x := stage(t, s, func(w *world) bool { return w.core.decided == 3 && holding(1, is[runner.Image])(w) })
	x.step(1, is[runner.Image])
	half, answers := x.core.cfg.Deadlines.Image/2+time.Second, x.core.workers[1].answers
	x.pass(half)
	x.unsaved()
	if x.core.workers[1].answers < answers+5 || len(x.kills()) > 0 {
		t.Fatalf("%d answers, kills %+v: want work beside the image, and nobody ended\n%s", x.core.workers[1].answers-answers, x.kills(), x.history())
	}
	x.pass(half)
	x.expectKill("drafter/0", runner.CauseDeadline, "did not answer image")
}

// An image whose copy is taken is not what its drafter is at: a death or a hang
// is put down to the order that the main thread has.
func TestATakenImageIsBesideTheWork(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 9, slots: 2, imageEvery: 3, budget: 9}
	x := stage(t, s, func(w *world) bool { return w.core.decided == 3 && holding(1, is[runner.Image])(w) })
	w := &x.core.workers[1]
	x.step(1, is[runner.Image])
	x.unsavedUntil(holding(1, is[runner.Commit]))
	if got, n, _ := w.doing(); got != "commit step 4" || n != 4 {
		t.Errorf("it is at %q, step %d, want commit step 4\n%s", got, n, x.history())
	}
	if !w.waits(is[runner.Image]) {
		t.Fatalf("no image is being written\n%s", x.history())
	}
	if v := x.core.View().Workers[1]; v.Order != "commit" {
		t.Errorf("shown at %q, want commit", v.Order)
	}
}

// unsaved lets everything happen but the end of images whose copy was taken.
func (x *scene) unsaved() { x.unsavedUntil(func(*world) bool { return false }) }

func (x *scene) unsavedUntil(moment func(*world) bool) {
	for !moment(x.world) {
		ms := slices.DeleteFunc(x.moves(), func(m move) bool {
			return m.fault() || m.verb == quick && is[runner.Image](x.procs[m.i].fast[m.n].order)
		})
		if len(ms) == 0 {
			return
		}
		x.apply1(ms[0])
	}
}

// An evaluation is open from its first order to its last result, and says how
// far it is; what is asked on the way of training is no part of it.
func TestMomentsOfEvaluations(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 2, slots: 2, budget: 9,
		evaluation: Evaluation{AtStart: true, AtEnd: true, Every: 1, Heldout: 5, HeldoutChunk: 2, Prompts: 3, PromptChunk: 2, NewTokens: 4}}
	x := stage(t, s, holding(0, func(o runner.Order) bool {
		e, ok := o.(runner.Evaluate)
		return ok && e.What == "plain" && e.First == 2
	}))
	m := x.core.View().Moments
	if want := (Span{Began: t0, Open: true, Done: 7, Total: 11, What: "plain"}); m.Before != want || m.After != (Span{}) {
		t.Errorf("within the evaluation: %+v", m)
	}
	if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
		t.Fatalf("finished with %+v %s", f, x.bad)
	}
	m = x.core.View().Moments
	if m.Before.Ended.IsZero() || m.Before.Open || m.Before.Done != 11 || m.After.Ended.IsZero() || m.After.Done != 8 || m.Training.IsZero() || m.Decided.IsZero() {
		t.Errorf("at the end: %+v", m)
	}
}
