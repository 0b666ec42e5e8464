package rows

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func randomIndex(g *rand.Rand, n int, longest int) *Index {
	ix := &Index{Samples: make([]SampleInfo, n)}
	for i := range ix.Samples {
		tokens := 1 + g.IntN(longest)
		ix.Samples[i] = SampleInfo{Tokens: uint32(tokens), Supervised: uint32(tokens), Anchors: uint32(g.IntN(tokens))}
	}
	ix.Samples[0] = SampleInfo{Tokens: 2, Supervised: 2, Anchors: 1}
	return ix
}

// run plans whole epochs, feeding horizons of random size.
func run(t *testing.T, g *rand.Rand, ix *Index, c Config, epochs uint32) []Step {
	t.Helper()
	p, err := NewPlanner(ix, c)
	if err != nil {
		t.Fatal(err)
	}
	var out []Step
	for e := uint32(1); e <= epochs; e++ {
		order := Order(7, e, p.Plannable(), c.Draws)
		for len(order) > 0 {
			n := 1 + g.IntN(len(order))
			if err := p.Feed(e, order[:n]); err != nil {
				t.Fatal(err)
			}
			order = order[n:]
			for {
				s, ok := p.Next()
				if !ok {
					break
				}
				out = append(out, s)
			}
		}
	}
	return out
}

// checkRow refuses a row that cuts a sample, overflows or oversteps a limit.
func checkRow(t *testing.T, ix *Index, c Config, r runner.RowPlan) {
	t.Helper()
	at, anchors := uint32(0), uint32(0)
	for _, p := range r.Pieces {
		s := ix.Samples[p.Sample]
		if p.Start != at || p.Tokens != s.Tokens || p.Anchors > s.Anchors || p.Anchors == 0 {
			t.Fatalf("row %d: piece %v of sample %v at %d", r.Row, p, s, at)
		}
		at += p.Tokens
		anchors += p.Anchors
	}
	i := slices.Index(c.Buckets, r.Bucket)
	if i < 0 || at > r.Bucket || i > 0 && at <= c.Buckets[i-1] || anchors > c.Anchors {
		t.Fatalf("row %d: %d tokens and %d anchors in bucket %d", r.Row, at, anchors, r.Bucket)
	}
}

func TestEpochHoldsEverySampleOnce(t *testing.T) {
	g := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		ix := randomIndex(g, 1+g.IntN(80), 40)
		drafters := 1 + g.IntN(3)
		c := Config{Buckets: []uint32{16, 40, 64}[g.IntN(2):], Anchors: uint32(1 + g.IntN(12)), Drafters: drafters, RowsPerStep: drafters * (1 + g.IntN(3)), Draws: uint32(1 + g.IntN(2))}
		type key struct {
			epoch uint32
			draw  draw
		}
		seen := map[key]int{}
		row := runner.Row(0)
		steps := run(t, g, ix, c, 3)
		for i, s := range steps {
			if s.Plan.Step != runner.Step(i+1) || len(s.Plan.Rows) != drafters {
				t.Fatalf("step %d: %v", i+1, s.Plan)
			}
			for j := range c.RowsPerStep { // the lowest rows first, weightless places last
				got := s.Plan.Rows[j%drafters][j/drafters]
				switch {
				case j >= len(s.Rows) && got != 0, j < len(s.Rows) && got != row+1:
					t.Fatalf("step %d place %d: row %d after %d of %d", i+1, j, got, row, len(s.Rows))
				case j < len(s.Rows):
					row++
				}
			}
			if len(s.Rows) < c.RowsPerStep && i+1 < len(steps) && steps[i+1].Plan.Epoch == s.Plan.Epoch {
				t.Fatalf("step %d falls short inside epoch %d", i+1, s.Plan.Epoch)
			}
			for _, r := range s.Rows {
				checkRow(t, ix, c, r)
				for _, p := range r.Pieces {
					seen[key{r.Epoch, draw{p.Sample, p.Draw}}]++
				}
			}
		}
		for i, s := range ix.Samples {
			for e := uint32(1); e <= 3; e++ {
				for d := range c.Draws + 1 {
					want := 0
					if s.Anchors > 0 && d < c.Draws {
						want = 1
					}
					if got := seen[key{e, draw{runner.Sample(i), d}}]; got != want {
						t.Fatalf("epoch %d sample %d draw %d: %d times, want %d", e, i, d, got, want)
					}
				}
			}
		}
	}
}

func TestNoRowCrossesAHorizon(t *testing.T) {
	ix := &Index{Samples: []SampleInfo{{Tokens: 2, Anchors: 1}, {Tokens: 2, Anchors: 1}, {Tokens: 2, Anchors: 1}, {Tokens: 2, Anchors: 1}}}
	p, err := NewPlanner(ix, Config{Buckets: []uint32{8}, Anchors: 4, RowsPerStep: 2, Drafters: 1, Draws: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Feed(1, []runner.Sample{3, 0}); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.Next(); ok {
		t.Fatal("a step was planned short inside an epoch")
	}
	if e, left := p.Wanted(); e != 1 || left != 2 {
		t.Errorf("wanted: got epoch %d, %d left", e, left)
	}
	c := p.Clone()
	if err := p.Feed(1, []runner.Sample{1, 2}); err != nil {
		t.Fatal(err)
	}
	s, ok := p.Next()
	if !ok || len(s.Rows) != 2 || s.Rows[0].Pieces[1].Sample != 0 || s.Rows[1].Pieces[0].Sample != 1 {
		t.Errorf("got %v", s)
	}
	if err := c.Feed(1, []runner.Sample{2, 1}); err != nil { // the clone went its own way
		t.Fatal(err)
	}
	if s2, _ := c.Next(); s2.Rows[1].Pieces[0].Sample != 2 || reflect.DeepEqual(s, s2) {
		t.Errorf("clone: got %v", s2)
	}
}

func TestFeedRefuses(t *testing.T) {
	ix := &Index{Samples: []SampleInfo{{Tokens: 2, Anchors: 1}, {Tokens: 2}, {Tokens: 2, Anchors: 1}}}
	c := Config{Buckets: []uint32{8}, Anchors: 4, RowsPerStep: 1, Drafters: 1, Draws: 1}
	for _, f := range []struct {
		name    string
		epoch   uint32
		samples []runner.Sample
		want    string
	}{
		{"an epoch skipped", 2, []runner.Sample{0}, "want epoch 1"},
		{"no samples", 1, nil, "want 1 to 2 samples"},
		{"more than there are", 1, []runner.Sample{0, 2, 0}, "want 1 to 2 samples"},
		{"an excluded sample", 1, []runner.Sample{1}, "sample 1 is not among"},
		{"an unknown sample", 1, []runner.Sample{9}, "sample 9 is not among"},
		{"a sample twice", 1, []runner.Sample{2, 2}, "place 1: sample 2 comes more than 1 times"},
	} {
		p, err := NewPlanner(ix, c)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Feed(f.epoch, f.samples)
		if err == nil || runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%s: got %v, want %q", f.name, err, f.want)
		}
		if e, left := p.Wanted(); e != 1 || left != 2 { // nothing was taken
			t.Errorf("%s: wanted epoch %d, %d left", f.name, e, left)
		}
	}
}

func TestNewPlannerRefuses(t *testing.T) {
	good := Config{Buckets: []uint32{4, 8}, Anchors: 4, RowsPerStep: 2, Drafters: 2, Draws: 1}
	samples := []SampleInfo{{Tokens: 2, Anchors: 1}, {Tokens: 3}}
	for _, c := range []struct {
		name string
		edit func(*Config, *Index)
		want string
	}{
		{"no bucket", func(c *Config, _ *Index) { c.Buckets = nil }, "buckets"},
		{"falling buckets", func(c *Config, _ *Index) { c.Buckets = []uint32{8, 4} }, "buckets"},
		{"equal buckets", func(c *Config, _ *Index) { c.Buckets = []uint32{8, 8} }, "buckets"},
		{"no anchors", func(c *Config, _ *Index) { c.Anchors = 0 }, "anchors"},
		{"no drafter", func(c *Config, _ *Index) { c.Drafters = 0 }, "drafters"},
		{"rows no multiple", func(c *Config, _ *Index) { c.RowsPerStep = 3 }, "rows_per_step"},
		{"no draw", func(c *Config, _ *Index) { c.Draws = 0 }, "draws"},
		{"a sample too long", func(_ *Config, ix *Index) { ix.Samples[1].Tokens = 9 }, "sample 1 has 9 tokens"},
		{"nothing to train on", func(_ *Config, ix *Index) { ix.Samples[0].Anchors = 0 }, "none of 2"},
	} {
		config, ix := good, &Index{Samples: slices.Clone(samples)}
		c.edit(&config, ix)
		if _, err := NewPlanner(ix, config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	p, err := NewPlanner(&Index{Samples: samples}, good)
	if err != nil || !slices.Equal(p.Excluded(), []Exclusion{{1, ReasonNoAnchor}}) {
		t.Errorf("excluded: got %v, %v", p.Excluded(), err)
	}
}

func TestScheduleAt(t *testing.T) {
	s := Schedule{Peak: 6e-4, Floor: 0.1, WarmUp: 0.1, Total: 100}
	for _, c := range []struct {
		step runner.Step
		want float64
	}{{1, 6e-5}, {5, 3e-4}, {10, 6e-4}, {55, 3.3e-4}, {100, 6e-5}, {200, 6e-5}} {
		if got := s.At(c.step); math.Abs(got-c.want) > 1e-18 {
			t.Errorf("step %d: got %g, want %g", c.step, got, c.want)
		}
	}
	if got := (Schedule{Peak: 1, Total: 1}).At(1); got != 0 { // no warm-up, one step: the floor
		t.Errorf("one step: got %g", got)
	}
}

// Golden: a later build must give the same order, rows and chain.
func TestGolden(t *testing.T) {
	if got, want := Order(42, 3, []runner.Sample{0, 1, 2, 3, 4, 5, 6, 7}, 2), []runner.Sample{0, 4, 3, 5, 6, 2, 7, 1, 3, 1, 4, 7, 6, 5, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("order: got %d, want %d", got, want)
	}
	g := rand.New(rand.NewPCG(5, 6))
	ix := randomIndex(g, 50, 20)
	c := Config{Buckets: []uint32{16, 32}, Anchors: 8, RowsPerStep: 4, Drafters: 2, Draws: 1, Schedule: Schedule{Peak: 1e-3, Floor: 0.1, WarmUp: 0.04, Total: 20}}
	var chain runner.Chain
	a, b := run(t, rand.New(rand.NewPCG(9, 9)), ix, c, 2), run(t, rand.New(rand.NewPCG(9, 9)), ix, c, 2)
	if !reflect.DeepEqual(a, b) {
		t.Error("the same calls gave other plans")
	}
	for _, s := range a {
		chain = Chain(chain, s)
	}
	if got, want := fmt.Sprintf("%x", chain), "c9d66c2f1ac9b7a3034093a3b17e137fd400b057dfbe9fc6ca36d9269b49600e"; got != want {
		t.Errorf("chain: got %s, want %s", got, want)
	}
}

func TestChainSeesEveryField(t *testing.T) {
	base := func() Step {
		return Step{
			Plan: runner.StepPlan{Step: 3, Epoch: 1, LR: 0.5, Rows: [][]runner.Row{{7, 9}, {8, 0}}},
			Rows: []runner.RowPlan{
				{Row: 7, Epoch: 1, Bucket: 8, Pieces: []runner.Piece{{Sample: 1, Draw: 0, Start: 0, Tokens: 4, Anchors: 2}}},
				{Row: 8, Epoch: 1, Bucket: 8}, {Row: 9, Epoch: 1, Bucket: 8},
			},
		}
	}
	seen := map[runner.Chain]string{Chain(runner.Chain{}, base()): "base"}
	for name, edit := range map[string]func(*Step){
		"step": func(s *Step) { s.Plan.Step++ }, "epoch": func(s *Step) { s.Plan.Epoch++ }, "lr": func(s *Step) { s.Plan.LR = math.Nextafter(s.Plan.LR, 1) },
		"swapped": func(s *Step) { s.Plan.Rows[0][0], s.Plan.Rows[1][0] = 8, 7 }, "moved": func(s *Step) { s.Plan.Rows = [][]runner.Row{{7, 9, 8}, {0}} },
		"row": func(s *Step) { s.Rows[0].Row++ }, "row epoch": func(s *Step) { s.Rows[0].Epoch++ }, "bucket": func(s *Step) { s.Rows[0].Bucket++ },
		"sample": func(s *Step) { s.Rows[0].Pieces[0].Sample++ }, "draw": func(s *Step) { s.Rows[0].Pieces[0].Draw++ }, "start": func(s *Step) { s.Rows[0].Pieces[0].Start++ },
		"tokens": func(s *Step) { s.Rows[0].Pieces[0].Tokens++ }, "anchors": func(s *Step) { s.Rows[0].Pieces[0].Anchors++ },
		"skip": func(s *Step) { *s, _ = s.Without(8) },
	} {
		s := base()
		edit(&s)
		c := Chain(runner.Chain{}, s)
		if other, ok := seen[c]; ok {
			t.Errorf("%s has the chain of %s", name, other)
		}
		seen[c] = name
	}
	if Chain(runner.Chain{1}, base()) == Chain(runner.Chain{}, base()) {
		t.Error("the chain before does not matter")
	}
}

func TestWithout(t *testing.T) {
	s := Step{Plan: runner.StepPlan{Step: 1, Rows: [][]runner.Row{{1, 3}, {2, 0}}}, Rows: []runner.RowPlan{{Row: 1}, {Row: 2}, {Row: 3}}}
	got, ok := s.Without(1)
	if !ok || !reflect.DeepEqual(got.Plan.Rows, [][]runner.Row{{0, 3}, {2, 0}}) || len(got.Rows) != 2 || s.Plan.Rows[0][0] != 1 {
		t.Errorf("got %v %v, from %v", got, ok, s)
	}
	for _, row := range []runner.Row{0, 4} {
		if _, ok := s.Without(row); ok {
			t.Errorf("row %d was taken out", row)
		}
	}
}

func TestCountSteps(t *testing.T) {
	g := rand.New(rand.NewPCG(8, 8))
	ix := randomIndex(g, 40, 20)
	c := Config{Buckets: []uint32{32}, Anchors: 8, RowsPerStep: 2, Drafters: 2, Draws: 1}
	p, err := NewPlanner(ix, c)
	if err != nil {
		t.Fatal(err)
	}
	h := p.Horizon(2)
	if h < 5 || h > 40 { // 4 rows of 32 tokens in samples of about 10
		t.Errorf("horizon: got %d", h)
	}
	n, err := CountSteps(ix, c, 7, 2, h)
	if err != nil || n == 0 {
		t.Fatal(n, err)
	}
	steps := 0
	for e := uint32(1); e <= 2; e++ {
		for order := Order(7, e, p.Plannable(), 1); len(order) > 0; order = order[min(h, len(order)):] {
			if err := p.Feed(e, order[:min(h, len(order))]); err != nil {
				t.Fatal(err)
			}
			for ok := true; ok; {
				if _, ok = p.Next(); ok {
					steps++
				}
			}
		}
	}
	if int(n) != steps {
		t.Errorf("counted %d, planned %d", n, steps)
	}
}

// An epoch fed before the last one was planned still starts with a step of its own.
func TestNoStepCrossesAnEpoch(t *testing.T) {
	ix := &Index{Samples: []SampleInfo{{Tokens: 8, Anchors: 1}, {Tokens: 8, Anchors: 1}, {Tokens: 8, Anchors: 1}}}
	p, err := NewPlanner(ix, Config{Buckets: []uint32{8}, Anchors: 4, RowsPerStep: 2, Drafters: 1, Draws: 1})
	if err != nil {
		t.Fatal(err)
	}
	for e := uint32(1); e <= 2; e++ {
		if err := p.Feed(e, []runner.Sample{0, 1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	var got []uint32
	for s, ok := p.Next(); ok; s, ok = p.Next() {
		got = append(got, s.Plan.Epoch, uint32(len(s.Rows)))
	}
	if want := []uint32{1, 2, 1, 1, 2, 2, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("epoch and rows of the steps: got %d, want %d", got, want)
	}
}

// A clone and its origin feed different samples and must not see each other's.
func TestClonesAreApart(t *testing.T) {
	ix := &Index{Samples: slices.Repeat([]SampleInfo{{Tokens: 8, Anchors: 1}}, 8)}
	p, err := NewPlanner(ix, Config{Buckets: []uint32{8}, Anchors: 4, RowsPerStep: 4, Drafters: 1, Draws: 1})
	if err != nil {
		t.Fatal(err)
	}
	for s := range runner.Sample(3) { // appending one by one leaves room for a fourth
		if err := p.Feed(1, []runner.Sample{s}); err != nil {
			t.Fatal(err)
		}
	}
	c := p.Clone()
	if err := p.Feed(1, []runner.Sample{3}); err != nil {
		t.Fatal(err)
	}
	if err := c.Feed(1, []runner.Sample{7}); err != nil {
		t.Fatal(err)
	}
	if err := c.Feed(1, []runner.Sample{3}); err != nil { // p has taken it, c has not
		t.Fatal(err)
	}
	a, _ := p.Next()
	b, _ := c.Next()
	if a.Rows[3].Pieces[0].Sample != 3 || b.Rows[3].Pieces[0].Sample != 7 {
		t.Errorf("got samples %d and %d, want 3 and 7", a.Rows[3].Pieces[0].Sample, b.Rows[3].Pieces[0].Sample)
	}
}
