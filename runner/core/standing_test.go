package core

import (
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/hang"
)

// What a worker is judged by: its phase, since when, and what it may wait for.
func TestStanding(t *testing.T) {
	for _, c := range []struct {
		name   string
		moment func(*world) bool
		worker int
		want   Standing
	}{
		{"warming up", func(w *world) bool { return w.procs[1].warming }, 1, Standing{Phase: hang.WarmUp, What: "warm-up"}},
		{"a first order", holding(0, is[runner.Produce]), 0, Standing{Phase: hang.Order, What: "produce row 1", First: true}},
		{"a later order", func(w *world) bool { return w.core.decided == 1 && holding(0, is[runner.Produce])(w) }, 0, Standing{Phase: hang.Order, What: "produce row "}},
		{"a micro-step of its own", func(w *world) bool { return holding(1, is[runner.Train])(w) && !holding(1, lastTrain)(w) }, 1, Standing{Phase: hang.Order, What: "train step 1 micro 0 row ", First: true}},
		{"one that reduces", holding(1, lastTrain), 1, Standing{Phase: hang.Order, What: "train step 1 micro 1 row ", Peers: true}},
		{"a join", holding(1, is[runner.Join]), 1, Standing{Phase: hang.Order, What: "join step 0", Peers: true, First: true}},
	} {
		x := stage(t, setup{targets: 1, drafters: 2, micros: 2, steps: 4, slots: 1, imageEvery: 1, budget: 9}, c.moment)
		got, ok := x.core.Standing(x.procs[c.worker].life)
		if !strings.HasPrefix(got.What, c.want.What) {
			t.Errorf("%s: doing %q, want %q", c.name, got.What, c.want.What)
		}
		got.What = c.want.What
		if got.Since.IsZero() || got.Since.After(x.now) {
			t.Errorf("%s: since %v, now %v", c.name, got.Since, x.now)
		}
		if got.Since = (time.Time{}); !ok || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, got, ok, c.want)
		}
	}
	x := stage(t, two, holding(0, is[runner.Produce]))
	if _, ok := x.core.Standing(runner.Life{Worker: x.procs[0].life.Worker, Generation: 9}); ok {
		t.Error("a life that is not there is judged")
	}
	x.give(Unfit{Life: x.procs[0].life, Cause: runner.CauseDeadline})
	if _, ok := x.core.Standing(x.procs[0].life); ok {
		t.Error("a life that is being ended is judged again")
	}
}
