package up

import (
	"strings"
	"testing"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
)

func TestManifestAgainst(t *testing.T) {
	whole := func() manifest {
		return manifest{Format: manifestFormat, Name: "r", Index: "aa", Data: "bb", WorldSize: 2, RowsPerStep: 4, Steps: 80, Buckets: []uint32{128}, Horizon: 50, Schedule: schedule{Peak: 1}, Threads: 1, Attention: "sdpa",
			Environment: "e", Machine: "m", Drafter: &workerv1.Drafter{Layers: 3}, Training: &workerv1.Training{Anchors: 40}, Target: &workerv1.Target{Dtype: "float32"}, Seed: 1}
	}
	for name, c := range map[string]struct {
		change  func(*manifest)
		refused string
		differs string
	}{
		"the same":                  {func(*manifest) {}, "", ""},
		"other data":                {func(m *manifest) { m.Data = "cc" }, "data: want what the run began with, bb, got cc", ""},
		"other index":               {func(m *manifest) { m.Index = "cc" }, "data index", ""},
		"more drafters":             {func(m *manifest) { m.WorldSize = 4 }, "workers.drafters", ""},
		"more rows":                 {func(m *manifest) { m.RowsPerStep = 8 }, "training.rows_per_step", ""},
		"more steps":                {func(m *manifest) { m.Steps = 400 }, "steps: want what the run began with, 80, got 400", ""},
		"other buckets":             {func(m *manifest) { m.Buckets = []uint32{64} }, "training.buckets", ""},
		"another horizon":           {func(m *manifest) { m.Horizon = 10 }, "training.horizon_steps", ""},
		"another peak":              {func(m *manifest) { m.Schedule.Peak = 2 }, "learning rate", ""},
		"another seed":              {func(m *manifest) { m.Seed = 2 }, "run.seed", ""},
		"a deeper drafter":          {func(m *manifest) { m.Drafter.Layers = 4 }, "drafter", ""},
		"fewer anchors":             {func(m *manifest) { m.Training.Anchors = 20 }, "training", ""},
		"another dtype":             {func(m *manifest) { m.Target.Dtype = "bfloat16" }, "target", ""},
		"another precision":         {func(m *manifest) { m.Drafter.Precision = "fp8" }, "drafter", ""},
		"more threads":              {func(m *manifest) { m.Threads = 2 }, "", "workers.threads was 1, is 2"},
		"another environment":       {func(m *manifest) { m.Environment = "f" }, "", "python environment was e, is f"},
		"another machine":           {func(m *manifest) { m.Machine = "n" }, "", "machine was m, is n"},
		"rows by flex":              {func(m *manifest) { m.Rows = "flex" }, "", "target.attention was sdpa, is flex"},
		"rows as they always were":  {func(m *manifest) { m.Rows = "sdpa" }, "", ""}, // a manifest of before named none
		"another kind of attention": {func(m *manifest) { m.Attention = "flex" }, "", "drafter.attention was sdpa, is flex"},
	} {
		t.Run(name, func(t *testing.T) {
			m := whole()
			c.change(&m)
			differs, err := m.against(whole())
			if got := strings.Join(differs, "; "); got != c.differs {
				t.Errorf("differs %q, want %q", got, c.differs)
			}
			if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("error %v, want one with %q", err, c.refused)
			}
		})
	}
}
