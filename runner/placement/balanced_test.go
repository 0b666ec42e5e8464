package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// rates is a balance in which a row costs a target t and a drafter d seconds,
// sharing loses a share of it, and every layout looked at is noted.
func rates(rows int, t, d, loss float64, seen *[]Layout) Balance {
	bound := func(l Layout) float64 {
		if l.Paired {
			return min(float64(l.Drafters)/d, float64(l.Targets)/(t+d*float64(min(l.Targets, l.Drafters))/float64(l.Drafters)))
		}
		return min(float64(l.Targets)/t, float64(l.Drafters)/d)
	}
	return Balance{RowsPerStep: rows, Bound: bound, Rate: func(l Layout) (float64, error) {
		*seen = append(*seen, l)
		if l.Paired {
			return bound(l) * (1 - loss), nil
		}
		return bound(l), nil
	}}
}

func TestChooseLayout(t *testing.T) {
	eight := Wanted{CUDA: true, GPUs: gpus("a", "b", "c", "d", "e", "f", "g", "h"), Colocate: "auto", TargetBytes: 40 << 20, DrafterBytes: 40 << 20}
	with := func(w Wanted, change func(*Wanted)) Wanted { change(&w); return w }
	for name, c := range map[string]struct {
		w    Wanted
		rows int
		t, d float64
		loss float64
		want Layout
		note string
		most int // rates asked for
	}{
		"pairs lose nothing":                {eight, 24, 1, 1.4, 0, Layout{8, 6, true}, "", 2},
		"pairs lose much":                   {eight, 40, 1, 1.4, 0.5, Layout{3, 5, false}, "", 12},
		"as good: nobody shares":            {eight, 24, 1, 1, 0, Layout{4, 4, false}, "", 4},
		"nearly as good: nobody shares":     {eight, 24, 1, 1.04, 0.017, Layout{4, 4, false}, "", 20},
		"the divisors of rows_per_step":     {eight, 4, 1, 1.7, 0.5, Layout{4, 4, false}, "3 targets, 5 drafters would make 2.9 rows a second for 2.4, but rows_per_step 4 is no multiple of 5 drafters: 5 would be", 20},
		"no memory for a pair":              {with(eight, func(w *Wanted) { w.TargetBytes = 61 << 20 }), 24, 1, 1, 0, Layout{4, 4, false}, "", 4},
		"drafters are law":                  {with(eight, func(w *Wanted) { w.Drafters = 3 }), 24, 1, 3, 0.9, Layout{5, 3, false}, "", 9},
		"targets are law":                   {with(eight, func(w *Wanted) { w.Targets = 2 }), 24, 1, 1, 0.9, Layout{2, 2, false}, "", 9},
		"colocate true is law":              {with(eight, func(w *Wanted) { w.Colocate = "true" }), 40, 1, 1.4, 0.5, Layout{8, 5, true}, "", 40},
		"colocate false is law":             {with(eight, func(w *Wanted) { w.Colocate = "false" }), 24, 1, 1, 0, Layout{4, 4, false}, "", 4},
		"one GPU":                           {with(eight, func(w *Wanted) { w.GPUs = w.GPUs[:1] }), 24, 1, 1, 0.5, Layout{1, 1, true}, "", 1},
		"a CPU of two turns":                {Wanted{Threads: 1, Cores: 2, Colocate: "auto"}, 24, 1, 1, 0, Layout{1, 1, false}, "", 1},
		"a CPU of eight":                    {Wanted{Threads: 1, Cores: 8, Colocate: "auto"}, 24, 1, 1, 0, Layout{4, 4, false}, "", 1},
		"a GPU that others use is left out": {with(eight, func(w *Wanted) { w.GPUs = slices.Clone(w.GPUs); w.GPUs[7].Busy = "x" }), 24, 1, 1.4, 0, Layout{7, 6, true}, "", 20},
	} {
		var seen []Layout
		got, err := rates(c.rows, c.t, c.d, c.loss, &seen).Choose(c.w)
		if err != nil || got.Layout != c.want || c.note == "" != (len(got.Notes) == 0) || !strings.Contains(fmt.Sprint(got.Notes), c.note) {
			t.Errorf("%s: want %v and %q, got %v, %q, %v; tried %v", name, c.want, c.note, got.Layout, got.Notes, err, got.Tried)
		}
		if len(seen) > c.most {
			t.Errorf("%s: asked for %d rates: %v", name, len(seen), seen)
		}
	}
}

// TestChoiceIsTheBest: looking from the highest bound down finds what trying
// all finds.
func TestChoiceIsTheBest(t *testing.T) {
	w := Wanted{CUDA: true, GPUs: gpus("a", "b", "c", "d", "e", "f"), Colocate: "auto"}
	for i := range 40 {
		var seen []Layout
		b := rates(24, 1, 0.2+0.1*float64(i), 0.02*float64(i%7), &seen)
		got, err := b.Choose(w)
		if err != nil {
			t.Fatal(err)
		}
		best := 0.0
		all, _ := w.layouts()
		for _, l := range all {
			if r, _ := b.Rate(l); 24%l.Drafters == 0 {
				best = max(best, r)
			}
		}
		if got.Rate*gain < best {
			t.Errorf("%d: got %v with %g, the best has %g", i, got.Layout, got.Rate, best)
		}
	}
}

func TestChooseLayoutRefuses(t *testing.T) {
	w := Wanted{CUDA: true, GPUs: gpus("a", "b"), Colocate: "auto"}
	var seen []Layout
	for says, w := range map[string]Wanted{
		"want a GPU that nobody uses":                         {CUDA: true, Colocate: "auto"},
		"want 300 MiB, got 100 MiB":                           {CUDA: true, GPUs: w.GPUs, Colocate: "auto", TargetBytes: 300 << 20},
		"a multiple of a number of drafters that fits, got 7": {CUDA: true, GPUs: w.GPUs, Colocate: "auto", Drafters: 2},
	} {
		if _, err := rates(7, 1, 1, 0, &seen).Choose(w); err == nil || !strings.Contains(err.Error(), says) || runner.HintOf(err) == "" {
			t.Errorf("want %q, got %v", says, err)
		}
	}
	b := rates(4, 1, 1, 0, &seen)
	b.Rate = func(Layout) (float64, error) { return 0, runner.Errorf(runner.Internal, "broken") }
	if _, err := b.Choose(w); err == nil {
		t.Error("want the rate's error")
	}
}
