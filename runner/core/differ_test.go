package core

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// ballot is the vote that a drafter of the model would give, changed by f.
func ballot(x *scene, i int, f func(*runner.Voted)) []runner.Reply {
	for _, k := range x.procs[i].main {
		if t, ok := k.order.(runner.Train); ok && t.Last {
			v := runner.Voted{At: t.At, Norm: 7, Finite: true}
			for _, row := range x.core.planOf(t.Step).Plan.Rows[x.procs[i].life.Worker.Rank] {
				if row != 0 {
					v.Rows = append(v.Rows, runner.RowLoss{Row: row, Numerator: 1, Denominator: 1})
				}
			}
			f(&v)
			return []runner.Reply{runner.Trained{Step: t.Step, Micro: t.Micro, Row: t.Row}, v}
		}
	}
	x.t.Fatalf("%v has no last micro-step", x.procs[i].life)
	return nil
}

// Replicas that differ stop the run: at a vote, at an image, after a load, and
// before the first step.
func TestI10_ReplicasThatDifferStopTheRun(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 2, imageEvery: 1, budget: 9}
	for _, c := range []struct {
		name string
		do   func(*scene)
		want string
	}{
		{"one bit of the norm at a vote", func(x *scene) {
			x.until(holding(1, lastTrain))
			x.answer(1, lastTrain, ballot(x, 1, func(v *runner.Voted) {})...)
			x.answer(2, lastTrain, ballot(x, 2, func(v *runner.Voted) { v.Norm++ })...)
		}, "drafters differ at step 1"},
		{"one bit of the weight at a vote", func(x *scene) {
			x.until(holding(1, lastTrain))
			x.answer(1, lastTrain, ballot(x, 1, func(v *runner.Voted) { v.Weight = 1 })...)
			x.answer(2, lastTrain, ballot(x, 2, func(v *runner.Voted) {})...)
		}, "drafters differ at step 1"},
		{"the parameters' digest at an image", func(x *scene) {
			x.until(holding(2, is[runner.Image]))
			x.answer(2, is[runner.Image], runner.Taken{Step: 1}, runner.Saved{Step: 1, Parameters: digest("another")})
			x.until(func(w *world) bool { return w.core.end.on })
		}, "drafters differ at step 1"},
		{"the parameters' digest after a load", func(x *scene) {
			x.until(func(w *world) bool { return w.core.decided == 1 && w.procs[2].at == 1 })
			x.crashed(&x.procs[2], false)
			x.until(holding(2, is[runner.Load]))
			x.answer(2, is[runner.Load], runner.Loaded{Step: 1, Chain: x.core.chain, Parameters: digest("another")})
		}, "after loading step 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, s, func(*world) bool { return true })
			c.do(x)
			if f := x.over(); f.Code != runner.ExitHopeless || !strings.Contains(f.Reason, c.want) {
				t.Errorf("finished with %+v, want code 93 and %q", f, c.want)
			}
			if n := count(x, func(a Append) bool { r, ok := a.Record.(runner.CommitRecord); return ok && r.Step > 1 }); n > 0 {
				t.Errorf("%d steps were decided after the replicas differed", n)
			}
		})
	}
}

func TestI10_DraftersThatBeginDifferentStopTheRun(t *testing.T) {
	c, err := New((&setup{targets: 1, drafters: 2, micros: 1, steps: 1, slots: 1}).config(nil))
	if err != nil {
		t.Fatal(err)
	}
	var acts []Action
	give := func(in Input) { acts = append(acts, c.Handle(t0, in)...) }
	give(Begin{})
	for i := range 2 {
		l := runner.Life{Worker: runner.Worker{Role: runner.Drafter, Rank: runner.Rank(i)}, Generation: 1}
		give(Launched{Life: l, ImageBytes: 8, Parameters: digest(string(rune('a' + i)))})
		give(Certified{Life: l})
	}
	if !c.end.on || c.end.code != runner.ExitHopeless || !strings.Contains(c.end.reason, "differ before the first step") {
		t.Errorf("ending is %+v, want code 93 for drafters that differ", c.end)
	}
	for _, a := range acts {
		if s, ok := a.(Send); ok && is[runner.Join](s.Order) {
			t.Errorf("%v was asked to join", s.Life)
		}
	}
}

// Votes that are never finite end the run; nothing of them is committed.
func TestI10_VotesThatAreNeverFiniteEndTheRun(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 4, steps: 1, slots: 2, budget: 9}
	x := stage(t, s, func(*world) bool { return true })
	for n := range 3 {
		x.until(holding(1, lastTrain))
		for i := 1; i <= 2; i++ { // each loss is finite, the norm is not
			x.answer(i, lastTrain, ballot(x, i, func(v *runner.Voted) {
				v.Finite = false
				v.Rows[len(v.Rows)-1].Numerator = float64(i + n)
			})...)
		}
	}
	if f := x.over(); f.Code != runner.ExitHopeless || !strings.Contains(f.Reason, "3 votes running were not finite") {
		t.Errorf("finished with %+v, want code 93", f)
	}
	if n := count(x, func(a Append) bool { _, ok := a.Record.(runner.CommitRecord); return ok }); n != 0 {
		t.Errorf("%d steps were decided, want none", n)
	}
	if n := count(x, func(a Append) bool { r, ok := a.Record.(runner.SkipRecord); return ok && r.Row%2 == 0 }); n != 3 {
		t.Errorf("%d rows of rank 1, whose loss was highest, were skipped, want 3", n)
	}
}

// A run whose every row is skipped has trained nothing, however many steps were
// decided without a row.
func TestEveryRowSkippedIsHopeless(t *testing.T) {
	for steps, reason := range map[int]string{2: "nothing was trained", 6: "3 votes running were not finite"} {
		s := setup{targets: 1, drafters: 2, micros: 1, steps: steps, slots: 2, budget: 9, poison: []runner.Sample{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}
		x := stage(t, s, func(w *world) bool { return w.finished != nil })
		if f := x.over(); f.Code != runner.ExitHopeless || !strings.Contains(f.Reason, reason) {
			t.Errorf("%d steps: finished with %+v, want code 93 for %q", steps, f, reason)
		}
	}
}
