package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// warmed is what warmup.py answers.
type warmed struct {
	about
	Attention string             `json:"attention"`
	Cache     string             `json:"cache"`
	Hits      int                `json:"hits"`
	Misses    int                `json:"misses"`
	Compiles  int                `json:"compiles"`
	Seconds   map[string]float64 `json:"seconds"`
}

// warmUpGoal is what a second worker's passes and oracle may cost of the first's.
const warmUpGoal = 0.25

// phases of a warm-up, in their order.
var phases = []string{"import", "build", "first_pass", "oracle", "record", "second_pass"}

// passes is what a warm cache is meant to save: both passes and what stands
// between them, the comparison with the oracle and what is recorded.
func (w warmed) passes() float64 {
	return w.Seconds["first_pass"] + w.Seconds["oracle"] + w.Seconds["record"] + w.Seconds["second_pass"]
}

// WarmUpBench warms up a shape's drafter in a first process, whose compile cache
// is empty, and in a second one that finds it; the second is on the second GPU
// where there are two.
func WarmUpBench(ctx context.Context, p *Python, d Devices, shape Shape) (*Report, error) {
	r := start("warmup")
	r.on(d)
	head, cache := filepath.Join(p.dir, "head"), filepath.Join(p.dir, "cache")
	if err := os.Mkdir(head, 0o700); err != nil {
		return nil, runner.Errorf(runner.Unavailable, "make bench directory: %w", err)
	}
	caches := compiling("TORCHINDUCTOR_CACHE_DIR="+filepath.Join(cache, "inductor"), "TRITON_CACHE_DIR="+filepath.Join(cache, "triton"))
	var found [2]warmed
	for i := range found {
		q := asked{Shape: shape, Device: d.told(), Threads: d.threads(), Directory: head}
		if err := p.measure(ctx, &found[i], p.on(d.place(i), d.threads(), caches...), "warmup.py", q); err != nil {
			return nil, err
		}
	}
	r.shaped(shape, found[0].about)
	if err := r.warmUps(found[0], found[1], d.OnGPU()); err != nil {
		return nil, err
	}
	return r.done(), nil
}

// warmUps adds both processes' seconds, the second's with its share of the first's.
func (r *Report) warmUps(first, second warmed, cuda bool) error {
	if first.passes() <= 0 || second.passes() <= 0 {
		return runner.Errorf(runner.Internal, "read result of warmup.py: want seconds above 0, got %g and %g", first.passes(), second.passes())
	}
	for _, w := range []struct {
		name string
		warmed
	}{{"first", first}, {"second", second}} {
		for _, phase := range phases {
			r.add(w.name+" process, "+strings.ReplaceAll(phase, "_", " "), w.Seconds[phase], "s", 0, nil)
		}
		r.add(w.name+" process, compiles", float64(w.Compiles), "", 0, nil)
		r.Facts["cache of the "+w.name] = w.Cache
	}
	r.add("first process, passes and oracle", first.passes(), "s", 0, nil)
	goal := goalOn(cuda, &Goal{Limit: warmUpGoal, OfRatio: true}) // on a CPU nothing is compiled
	r.add("second process, passes and oracle", second.passes(), "s", second.passes()/first.passes(), goal)
	r.Facts["attention"] = first.Attention
	return nil
}
