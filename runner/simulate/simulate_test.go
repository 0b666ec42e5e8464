package simulate

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// lay gives workers: targets on those devices, drafters on those.
func lay(targets, drafters []int) (out []Worker) {
	for i, d := range targets {
		out = append(out, Worker{runner.Worker{Role: runner.Target, Rank: runner.Rank(i)}, d})
	}
	for i, d := range drafters {
		out = append(out, Worker{runner.Worker{Role: runner.Drafter, Rank: runner.Rank(i)}, d})
	}
	return out
}

func ones(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 1
	}
	return out
}

func rowsOf(times ...float64) (out []Row) {
	for i := 0; i < len(times); i += 2 {
		out = append(out, Row{Tokens: 100, TargetMS: times[i], DrafterMS: times[i+1]})
	}
	return out
}

// TestByHand: small runs whose every moment was worked out on paper, in
// milliseconds.
func TestByHand(t *testing.T) {
	for name, c := range map[string]struct {
		s        Setup
		makespan float64
		used     map[string]float64 // "target/0 slot" and so on
	}{
		// Row 0 is there at 12. Trained 12-32-52, voted 53, committed 58; the next rows lie ready: 58-78-98, 99, 104.
		"apart": {Setup{Trace: Trace{Rows: rowsOf(10, 20), Costs: Costs{UpdateMS: 5, VoteMS: 1, HandOffMS: 2, HandOffLocalMS: 1}},
			Workers: lay([]int{0}, []int{1}), Turns: ones(2), RowsPerStep: 2, Steps: 2}, 104,
			map[string]float64{"target/0 produce": 40, "target/0 nothing": 64, "drafter/0 train": 80, "drafter/0 commit": 10, "drafter/0 vote": 2, "drafter/0 row": 12}},
		// Rows made 0-10-20, so training waits 9 for the turn: 20-40, voted 41, committed 46, 46-66, 67, 72.
		"one device": {Setup{Trace: Trace{Rows: rowsOf(10, 20), Costs: Costs{UpdateMS: 5, VoteMS: 1, HandOffMS: 2, HandOffLocalMS: 1}},
			Workers: lay([]int{0}, []int{0}), Turns: ones(1), RowsPerStep: 1, Steps: 2}, 72,
			map[string]float64{"target/0 produce": 20, "target/0 nothing": 52, "drafter/0 train": 40, "drafter/0 turn": 9, "drafter/0 row": 11, "drafter/0 commit": 10, "drafter/0 vote": 2}},
		// Rows there at 12 and 22; together from 22, the slower to 52, half of 8 for the sum: 56, voted 57, committed 62.
		"two ranks": {Setup{Trace: Trace{Rows: rowsOf(10, 20, 10, 30), Costs: Costs{UpdateMS: 5, VoteMS: 1, SumMS: 8, HandOffMS: 2}},
			Workers: lay([]int{0}, []int{1, 2}), Turns: ones(3), RowsPerStep: 2, Steps: 1}, 62,
			map[string]float64{"drafter/0 train": 20, "drafter/0 sum": 14, "drafter/0 vote": 11, "drafter/0 row": 12, "drafter/1 train": 30, "drafter/1 sum": 4, "drafter/1 row": 22, "drafter/1 vote": 1}},
		// Two rows in buffers at 2, two in slots at 4; a slot is free at 101 and at 201.
		"slots": {Setup{Trace: Trace{Rows: rowsOf(1, 100)}, Slots: 2, Workers: lay([]int{0}, []int{1}), Turns: ones(2), RowsPerStep: 6, Steps: 1}, 601,
			map[string]float64{"target/0 produce": 6, "target/0 slot": 196, "target/0 nothing": 399, "drafter/0 row": 1}},
		// The target's device takes twice as long: row 0 at 20, row 1 at 40 while 0 is trained to 30; then 50.
		"a slow device": {Setup{Trace: Trace{Rows: rowsOf(10, 10), Slow: []Slow{{0, 0, 2}}}, Workers: lay([]int{0}, []int{1}), Turns: ones(2), RowsPerStep: 2, Steps: 1}, 50,
			map[string]float64{"target/0 produce": 40, "drafter/0 row": 30, "drafter/0 train": 20}},
		// The image of step 1 is begun at 20 and open to 70; step 2 is trained at 30 and decided at 70.
		"an image": {Setup{Trace: Trace{Rows: rowsOf(10, 10), Costs: Costs{ImageMS: 50, ImageEvery: 1}}, Workers: lay([]int{0}, []int{1}), Turns: ones(2), RowsPerStep: 1, Steps: 2}, 70,
			map[string]float64{"drafter/0 vote": 40}},
		// Two nodes: one row each, made and trained there, and half of 4 for the sum of two.
		"two nodes": {Setup{Trace: Trace{Rows: rowsOf(10, 20), Costs: Costs{SumMS: 4}}, Nodes: 2, Workers: lay([]int{0}, []int{1}), Turns: ones(2), RowsPerStep: 2, Steps: 1}, 32,
			map[string]float64{"target/0 produce": 20, "drafter/0 train": 40, "drafter/0 sum": 4}},
		// Row 1 is pulled 20-22, while row 0 is trained: the next step begins at 32.
		"a row of the next step": {Setup{Trace: Trace{Rows: rowsOf(10, 20), Costs: Costs{HandOffMS: 2}}, Workers: lay([]int{0}, []int{1}), Turns: ones(2), RowsPerStep: 1, Steps: 2}, 52,
			map[string]float64{"drafter/0 row": 12, "drafter/0 train": 40}},
		// Rows there at 1 and 2, and soon two each; by turns 1-21-41-61-81, then the last ones together to 101.
		"the longest unserved": {Setup{Trace: Trace{Rows: rowsOf(1, 20)}, Workers: lay([]int{0}, []int{1, 1}), Turns: ones(2), RowsPerStep: 6, Steps: 1}, 101,
			map[string]float64{"drafter/0 turn": 20, "drafter/0 train": 60, "drafter/1 turn": 39, "drafter/1 train": 60}},
		// Rows 0 and 1 are made by 20; two are trained to 60, then row 2 is made to 70, and trained to 90.
		"the drafter first": {Setup{Trace: Trace{Rows: rowsOf(10, 20)}, Workers: lay([]int{0}, []int{0}), Turns: ones(1), RowsPerStep: 3, Steps: 1}, 90,
			map[string]float64{"target/0 turn": 40, "drafter/0 turn": 10, "drafter/0 row": 20}},
		// Both ready at 16. By what row 1 took, row 3 is made to 32: row 4 fits, 20-30. At 26 row 3 is made, and row 5 seems worth a wait to 42. 42-62-82-102.
		"until rows fit": {Setup{Trace: Trace{Rows: rowsOf(10, 20, 16, 20, 10, 20, 10, 20)}, Workers: lay([]int{0, 1}, []int{0, 1}), Turns: ones(2), RowsPerStep: 2, Steps: 3}, 102,
			map[string]float64{"target/0 produce": 30, "target/0 turn": 0, "target/1 produce": 42, "drafter/0 turn": 26, "drafter/0 train": 60}},
	} {
		c.s.Trace.Format, c.s.Trail = Format, true
		c.s.Nodes, c.s.Slots = max(1, c.s.Nodes), max(c.s.Slots, 2)
		r, err := Run(c.s)
		if err != nil || r.Makespan != ms(c.makespan) {
			t.Errorf("%s: want %g ms, got %s, %v", name, c.makespan, r.Makespan, err)
			continue
		}
		got := used(r)
		for key, want := range c.used {
			if got[key] != ms(want) {
				t.Errorf("%s: %s: want %g ms, got %s", name, key, want, got[key])
			}
		}
		conserves(t, name, c.s, r)
	}
}

// used adds up what a role's rank did on all nodes.
func used(r Result) map[string]time.Duration {
	out := map[string]time.Duration{}
	all := ordered(r.setup.Workers)
	for i, u := range r.Used {
		for c, spent := range u {
			out[fmt.Sprint(all[i%len(all)].Worker, " ", Cause(c))] += spent
		}
	}
	return out
}

// TestConserves: random setups keep every law, and never beat the bound.
func TestConserves(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	tight := 0
	for range 300 {
		s := random(r)
		res, err := Run(s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		conserves(t, fmt.Sprintf("%+v", brief(s)), s, res)
		if b := s.Bound(); res.Makespan.Seconds() < b.Seconds*1.001 {
			tight++
		}
	}
	if tight < 10 {
		t.Errorf("the bound is reached in %d of 300 runs: it says little", tight)
	}
}

// TestBoundOfPairs: eight pairs with rows that differ in every way, some devices
// slow, and rows assigned by rule, by the first that can, or at random, never
// beat the bound, in one step or many.
func TestBoundOfPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	near := 1.0
	for range 60 {
		spread := float64(r.IntN(3)) / 2 * r.Float64() // of a third, rows are alike
		base := Trace{Format: Format, Rows: []Row{{Tokens: 3072, TargetMS: 50 + 100*r.Float64(), DrafterMS: 50 + 100*r.Float64()}},
			Costs: Costs{UpdateMS: 8, SumMS: 3, VoteMS: 1, OrderMS: 0.1, HandOffMS: 1.6, HandOffLocalMS: 1.5}}
		s := Setup{Trace: Synthetic{Seed: r.Uint64(), Rows: 200, Jitter: 0.1 * spread, Straggle: 0.05 * spread, StraggleBy: 4, Mixed: spread}.Draw(base),
			Nodes: 1, Workers: lay(all, all), Turns: ones(8), Slots: 1 + r.IntN(4), RowsPerStep: 8 * (1 + r.IntN(6)), Steps: 1 + r.IntN(30), Trail: true}
		if r.IntN(2) == 0 {
			s.Trace.Slow = []Slow{{0, r.IntN(8), 0.8 + 0.6*r.Float64()}}
		}
		s.Assign = []Assigner{nil, func(_ runner.Row, _ int, free []Candidate) (int, error) { return r.IntN(len(free)), nil }}[r.IntN(2)]
		res, err := Run(s)
		if err != nil {
			t.Fatal(err)
		}
		conserves(t, fmt.Sprintf("%+v", brief(s)), s, res)
		near = min(near, res.Makespan.Seconds()/s.Bound().Seconds-1)
	}
	if near > 0.005 {
		t.Errorf("no run came nearer to the bound than %.4f: it says little", near)
	}
}

func brief(s Setup) Setup { s.Trace.Rows = s.Trace.Rows[:1]; return s }

// random draws a setup: nodes, layouts, shared devices, slow ones, turns.
func random(r *rand.Rand) Setup {
	base := Trace{Format: Format, Name: "base", Rows: []Row{{Tokens: 100, TargetMS: 1 + 50*r.Float64(), DrafterMS: 1 + 50*r.Float64()}},
		Costs: Costs{UpdateMS: 5 * r.Float64(), SumMS: 5 * r.Float64(), VoteMS: r.Float64(), OrderMS: r.Float64() / 5, HandOffMS: 2 * r.Float64(), HandOffLocalMS: r.Float64(), ImageMS: 200 * r.Float64(), ImageEvery: r.IntN(4)}}
	devices, nodes := 1+r.IntN(4), 1+r.IntN(3)
	s := Setup{Trace: Synthetic{Seed: r.Uint64(), Rows: 50, Jitter: 0.3 * r.Float64(), Straggle: 0.05, StraggleBy: 4, Mixed: 0.2}.Draw(base),
		Nodes: nodes, Turns: ones(devices), Slots: 1 + r.IntN(3), Steps: 1 + r.IntN(6), Trail: true}
	var targets, drafters []int
	for d := range devices {
		s.Turns[d] += r.IntN(2)
		if r.IntN(2) == 0 || len(targets) == 0 {
			targets = append(targets, d)
		}
		if r.IntN(2) == 0 || len(drafters) == 0 && d == devices-1 {
			drafters = append(drafters, d)
		}
	}
	if r.IntN(2) == 0 {
		s.Trace.Slow = []Slow{{r.IntN(nodes), r.IntN(devices), 0.5 + 2*r.Float64()}}
	}
	if r.IntN(2) == 0 {
		s.Assign = func(_ runner.Row, _ int, free []Candidate) (int, error) { return r.IntN(len(free)), nil }
	}
	s.Workers, s.RowsPerStep = lay(targets, drafters), len(drafters)*nodes*(1+r.IntN(4))
	return s
}

// conserves checks a run against the laws that hold for every one.
func conserves(t *testing.T, name string, s Setup, r Result) {
	t.Helper()
	b := s.Bound()
	if r.Makespan.Seconds() < b.Seconds-1e-9*b.Seconds-1e-8 || r.IdleShare() < b.IdleShare-1e-6 {
		t.Errorf("%s: %s and %.6f idle beat the bound of %.9f s and %.6f", name, r.Makespan, r.IdleShare(), b.Seconds, b.IdleShare)
	}
	for i, used := range r.Used {
		sum := time.Duration(0)
		for _, u := range used {
			sum += u
		}
		if sum != r.Makespan {
			t.Errorf("%s: worker %d: its time adds up to %s of %s", name, i, sum, r.Makespan)
		}
	}
	all, targets := ordered(s.Workers), 0
	for _, w := range all {
		if w.Worker.Role == runner.Target {
			targets++
		}
	}
	made, trained := map[int]Span{}, map[int]Span{}
	turns, slots, buffers := holds{}, holds{}, holds{}
	for _, x := range r.Spans {
		if x.To < x.From || x.To > r.Makespan {
			t.Errorf("%s: span %+v", name, x)
		}
		turns.add([2]int{x.Node, all[x.Worker].Device}, x.From, x.To)
		switch x.Cause {
		case Produce:
			once(t, name, made, x)
		case Train:
			once(t, name, trained, x)
		}
	}
	if len(made) != r.Rows || len(trained) != r.Rows || len(r.Pulls) != r.Rows || r.Rows != s.RowsPerStep*s.Steps {
		t.Errorf("%s: %d rows: %d made, %d pulled, %d trained", name, r.Rows, len(made), len(r.Pulls), len(trained))
	}
	for _, p := range r.Pulls {
		m, d := made[p.Row], trained[p.Row]
		if m.To > p.From || p.To > d.From || m.Node != p.Node || d.Node != p.Node || m.Worker != p.Target || d.Worker != targets+p.Rank {
			t.Errorf("%s: row %d: made %+v, pulled %+v, trained %+v", name, p.Row, m, p, d)
		}
		slots.add([2]int{p.Node, p.Target}, m.From, p.To)
		buffers.add([2]int{p.Node, p.Rank}, p.From, d.To)
	}
	for key, most := range turns.most() {
		if most > max(s.Turns[key[1]], sharing(s, key[1])) {
			t.Errorf("%s: device %d of node %d: %d compute at once", name, key[1], key[0], most)
		}
	}
	for _, most := range slots.most() {
		if most > s.Slots {
			t.Errorf("%s: %d rows in %d slots", name, most, s.Slots)
		}
	}
	for _, most := range buffers.most() {
		if most > 2 {
			t.Errorf("%s: %d rows in two buffers", name, most)
		}
	}
}

// sharing is how many drafters a device has: their last micro-step is common.
func sharing(s Setup, device int) (n int) {
	for _, w := range s.Workers {
		if w.Worker.Role == runner.Drafter && w.Device == device {
			n++
		}
	}
	return n
}

func once(t *testing.T, name string, seen map[int]Span, x Span) {
	t.Helper()
	if before, ok := seen[x.Row]; ok {
		t.Errorf("%s: row %d twice: %+v, %+v", name, x.Row, before, x)
	}
	seen[x.Row] = x
}

// holds are times in which something is held, by what holds it.
type holds map[[2]int]map[time.Duration]int

func (h holds) add(key [2]int, from, to time.Duration) {
	if h[key] == nil {
		h[key] = map[time.Duration]int{}
	}
	if from < to { // at one moment the old holder goes first
		h[key][from]++
		h[key][to]--
	}
}

// most is how many held it at once.
func (h holds) most() map[[2]int]int {
	out := map[[2]int]int{}
	for key, changes := range h {
		n := 0
		for _, at := range sorted(changes) {
			n += changes[at]
			out[key] = max(out[key], n)
		}
	}
	return out
}

func sorted(m map[time.Duration]int) []time.Duration {
	return slices.Sorted(maps.Keys(m))
}

// TestSynthetic: the same seed draws the same rows, another draws others, and
// their mean is what was asked for.
func TestSynthetic(t *testing.T) {
	base := Trace{Format: Format, Name: "base", Measured: true, Rows: []Row{{Tokens: 1000, TargetMS: 50, DrafterMS: 100}}}
	a, b, c := Default(1).Draw(base), Default(1).Draw(base), Default(2).Draw(base)
	if fmt.Sprint(a) != fmt.Sprint(b) || fmt.Sprint(a.Rows) == fmt.Sprint(c.Rows) || a.Measured || a.Check() != nil {
		t.Error("draws differ for one seed, are equal for two, or are no trace")
	}
	// A tenth is half as long, a hundredth takes three times as long to make.
	if m := a.Mean(); math.Abs(m.DrafterMS-100) > 0.5 || math.Abs(m.TargetMS-50*0.95*1.02) > 0.7 || math.Abs(float64(m.Tokens)-950) > 10 {
		t.Errorf("mean: got %+v", m)
	}
}

// picks assigns to one place always; below 0 it gives no answer.
func picks(at int) Assigner {
	return func(runner.Row, int, []Candidate) (int, error) {
		if at < 0 {
			return 0, runner.Errorf(runner.Unavailable, "no answer")
		}
		return at, nil
	}
}

func TestRefuses(t *testing.T) {
	good := Setup{Trace: Trace{Format: Format, Rows: rowsOf(1, 1)}, Nodes: 1, Workers: lay([]int{0, 1}, []int{2, 3}), Turns: ones(4), Slots: 2, RowsPerStep: 4, Steps: 2}
	if _, err := Run(good); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*Setup){
		"rows[0]: want times above 0":              func(s *Setup) { s.Trace.Rows = rowsOf(0, 1) },
		"format: want 1, got 0":                    func(s *Setup) { s.Trace.Format = 0 },
		"rows: want at least one":                  func(s *Setup) { s.Trace.Rows = nil },
		"costs.vote_ms: want 0 to":                 func(s *Setup) { s.Trace.Costs.VoteMS = math.NaN() },
		"slow[0]: want a device and a factor":      func(s *Setup) { s.Trace.Slow = []Slow{{0, 0, 0}} },
		"slow[0]: want one of 4 devices":           func(s *Setup) { s.Trace.Slow = []Slow{{0, 4, 1}} },
		"want a multiple of the 2 drafters, got 3": func(s *Setup) { s.RowsPerStep = 3 },
		"want a target and a drafter":              func(s *Setup) { s.Workers = s.Workers[:2] },
		"target/0: want a device with turns":       func(s *Setup) { s.Turns[0] = 0 },
		"want nodes, slots and steps":              func(s *Setup) { s.Slots = 0 },
		"want at most":                             func(s *Setup) { s.Steps = 1 << 40 },
		"want one of 2 free targets, got place 2":  func(s *Setup) { s.Assign = picks(2) },
		"no answer": func(s *Setup) { s.Assign = picks(-1) },
	} {
		s := good
		s.Turns = ones(4)
		change(&s)
		if _, err := Run(s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
	for _, text := range []string{"", "{}", `{"format":1,"row":[]}`, `{"format":1,"rows":[{"target_ms":1,"drafter_ms":1}]} 1`, `{"format":1,"rows":[{"target_ms":1,"drafter_ms":"1"}]}`} {
		if _, err := Parse([]byte(text)); runner.KindOf(err) != runner.Invalid || err == nil {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// TestFirstWithATurn: without an assigner rows go to the first target that can
// begin, as to one that names it.
func TestFirstWithATurn(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	asked := 0
	for range 400 {
		s := random(r)
		s.Assign = nil
		a, err := Run(s)
		if err != nil {
			t.Fatal(err)
		}
		s.Assign = func(_ runner.Row, _ int, free []Candidate) (int, error) {
			asked++
			return slices.IndexFunc(free, func(f Candidate) bool { return f.Turn }), nil
		}
		b, err := Run(s)
		if err != nil || !slices.Equal(a.Spans, b.Spans) {
			t.Fatalf("%+v: %s without an assigner, %s with one, %v", brief(s), a.Makespan, b.Makespan, err)
		}
	}
	if asked < 1000 {
		t.Errorf("asked %d times only", asked)
	}
}
