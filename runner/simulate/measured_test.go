package simulate

import (
	"os"
	"path/filepath"
	"testing"
)

// shipped reads a trace of testdata.
func shipped(t testing.TB, name string) Trace {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// TestMeasuredRuns compares with the two real runs on H200s of
// python/bench/LOG.md, whose usage of time gives the costs. What is no step is
// taken off what was measured: 35.5 s of evaluations in one, 16.9 s without a
// settled step after a death in the other. The steps of gpu-2 that follow a death
// or the beginning are up to three times as long as the median one, which no cost
// here says; from gpu-1's costs the wait for the other rank's sum is missing too.
func TestMeasuredRuns(t *testing.T) {
	for _, c := range []struct {
		name, costs string
		gpus, steps int
		seconds     float64 // measured
		least, most float64 // of the prediction, as a share of that
	}{
		{"gpu-1", "gpu-1", 1, 600, 150.5 - 35.5, 0.97, 1.03},
		{"gpu-2", "gpu-2", 2, 80, 26.76 - 16.9, 0.85, 1.0},
		{"gpu-2", "gpu-1", 2, 80, 26.76 - 16.9, 0.75, 1.0},
		{"gpu-2, its median step", "gpu-2", 2, 80, 80 * 0.1097, 0.95, 1.05},
		{"gpu-2, its median step", "gpu-1", 2, 80, 80 * 0.1097, 0.85, 1.0},
	} {
		var devices []int
		for i := range c.gpus {
			devices = append(devices, i)
		}
		r, err := Run(Setup{Trace: shipped(t, c.costs), Nodes: 1, Workers: lay(devices, devices), Turns: ones(c.gpus), Slots: 3, RowsPerStep: 4, Steps: c.steps})
		if err != nil {
			t.Fatal(err)
		}
		got := r.Makespan.Seconds() / c.seconds
		t.Logf("%s from the costs of %s: predicted %.2f s, measured %.2f: %+.1f %%", c.name, c.costs, r.Makespan.Seconds(), c.seconds, 100*(got-1))
		if got < c.least || got > c.most {
			t.Errorf("%s from the costs of %s: predicted %.2f s, measured %.2f", c.name, c.costs, r.Makespan.Seconds(), c.seconds)
		}
	}
}
