package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// graded are the traces that balanced is held to, and what each runs on: a run is
// at most 3 % longer than the bound. Before rows were paced (package pace) mixed
// was 2.94 and stragglers 6.08 %. Over 16 other traces of each kind, 30 steps, a
// prototype of that took jitter from 2.02 to 1.30 %, mixed from 3.86 to 2.83, a
// slow GPU from 4.06 to 1.48, pauses from 7.29 to 5.80, and both from 7.56 to 5.40.
// That stragglers is below 3 depends on the window of the median: 3, 5, 7 and 9
// gave 3.03, 2.85, 3.39 and 5.00, while the other traces tell them hardly apart.
// Dealing a step's rows to ranks by length instead of in order gains nothing: 1.4 %
// slower to 0.2 % faster before, and by what they cost the drafter 1.9 % slower to
// 1.2 % faster, as the order of making them changes with it.
var graded = []struct {
	file  string
	gpus  int
	rows  int     // of a step
	most  float64 // longer than the bound
	shape []string
}{
	{"runner/simulate/testdata/gpu-1.json", 1, 4, 0.03, []string{"training.buckets=[2048]", "training.anchors=256"}},
	{"configs/traces/h200-8b.json", 8, 24, 0.03, nil},
	{"configs/traces/h200-8b.json", 8, 40, 0.03, nil},
	{"configs/traces/h200-27b.json", 8, 24, 0.03, []string{"training.buckets=[4096]"}},
	{"runner/simulate/testdata/jitter.json", 8, 40, 0.03, nil},
	{"runner/simulate/testdata/mixed.json", 8, 40, 0.03, nil},
	{"runner/simulate/testdata/stragglers.json", 8, 40, 0.03, nil},
}

func traceOf(t testing.TB, file string) simulate.Trace {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := simulate.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// model is the target of a trace: sizes that memory goes by.
func model(t simulate.Trace) config.Model {
	if t.Shape.Vocabulary == 248320 {
		return config.Model{HiddenSize: 5120, IntermediateSize: 17408, Layers: 64, Heads: 24, KVHeads: 4, HeadDim: 256, VocabSize: 248320, MaxPositions: 40960}
	}
	return qwen()
}

// TestBalancedNearTheBound: over the traces, what balanced chooses takes at most
// so much longer than the bound of the chosen layout, and no other way to divide
// the node with the same rows a step is more than 3 % faster.
func TestBalancedNearTheBound(t *testing.T) {
	const steps, trial = 60, 15
	for _, g := range graded {
		trace := traceOf(t, g.file)
		trace.Costs.ImageEvery = 0 // an image holds every layout up alike
		m := gpusOf(slices.Repeat([]uint64{140}, g.gpus)...)
		c := large(t, append(append([]string{fmt.Sprintf("training.rows_per_step=%d", g.rows)}, auto...), g.shape...)...)
		settled, chosen, err := Settle(c, model(trace), m, trace)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Make(settled, model(trace), m)
		if err != nil {
			t.Fatal(err)
		}
		s := Setup(settled, p, m, trace, 1, steps)
		over, idle, tokens := against(t, s)
		best, err := Splits(c, model(trace), m, trace, trial)
		if err != nil {
			t.Fatal(err)
		}
		own := best[slices.IndexFunc(best, func(b Split) bool { return b.Layout == chosen.Layout })]
		best = slices.DeleteFunc(best, func(b Split) bool { return b.RowsPerStep != g.rows }) // another recipe
		t.Logf("%-42s %2d rows a step: %-32s %6.0f tokens/s, idle %5.2f %%, %.2f %% longer than the bound; in %d steps %.0f, the best %s %.0f",
			g.file, g.rows, chosen.Layout, tokens, 100*idle, 100*over, trial, own.TokensPerS, best[0].Layout, best[0].TokensPerS)
		if over > g.most {
			t.Errorf("%s: %s takes %.4f longer than the bound, want at most %.3f", g.file, chosen.Layout, over, g.most)
		}
		if own.TokensPerS < 0.97*best[0].TokensPerS {
			t.Errorf("%s: %s makes %.0f tokens/s, %s makes %.0f", g.file, chosen.Layout, own.TokensPerS, best[0].Layout, best[0].TokensPerS)
		}
	}
}

// against gives how much longer than the bound a setup takes, and what it comes to.
func against(t *testing.T, s simulate.Setup) (over, idle, tokens float64) {
	t.Helper()
	r, err := simulate.Run(s)
	if err != nil {
		t.Fatal(err)
	}
	return r.Makespan.Seconds()/s.Bound().Seconds - 1, r.IdleShare(), r.TokensPerS()
}

// TestManyNodes: 64 nodes of eight GPUs are simulated as one run.
func TestManyNodes(t *testing.T) {
	trace := traceOf(t, "runner/simulate/testdata/jitter.json")
	c := large(t, "workers.targets=3", "workers.drafters=5", "workers.colocate=false", "training.rows_per_step=40")
	m := gpusOf(slices.Repeat([]uint64{140}, 8)...)
	p, err := Make(c, qwen(), m)
	if err != nil {
		t.Fatal(err)
	}
	s := Setup(c, p, m, trace, 64, 3)
	r, err := simulate.Run(s)
	if err != nil || r.Rows != 64*40*3 || len(r.Used) != 64*8 {
		t.Fatalf("got %d rows of %d workers, %v", r.Rows, len(r.Used), err)
	}
	if over := r.Makespan.Seconds()/s.Bound().Seconds - 1; over < 0 || over > 0.2 {
		t.Errorf("got %.3f longer than the bound", over)
	}
}
