package e2e

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// published is a line of `checkpoints list --json`.
type published struct {
	Name    string
	Step    int
	Lineage int
	Best    bool
	State   string
}

func checkCheckpoints(t *testing.T, h *home) {
	var all []published
	h.must(0, "checkpoints", "verify", "--json").json(t, &all)
	best := 0
	for _, c := range all {
		if c.State != "ok" || c.Lineage != 1 {
			t.Errorf("checkpoint %+v: want ok, of lineage 1", c)
		}
		if c.Best {
			best++
		}
	}
	if len(all) != 2 || all[0].Step != 8 || all[1].Step != steps || best != 1 {
		t.Errorf("want the checkpoints of steps 8 and %d, one of them the best, got %+v", steps, all)
	}
}

// checkExport: the exported drafter, loaded in a new process, accepts as many
// tokens as the trained one did.
func checkExport(t *testing.T, h *home, s admin.Summary) {
	if s.Export != h.path("cpu-test", "export") {
		t.Errorf("export: want it in the run's directory, got %q", s.Export)
	}
	var config struct {
		BlockSize int `json:"block_size"`
		Layers    int `json:"num_hidden_layers"`
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(s.Export, "config.json"))), &config); err != nil || config.BlockSize != 4 || config.Layers != 2 {
		t.Errorf("config.json: want block_size 4 and 2 layers, got %+v, %v", config, err)
	}
	prompts, err := filepath.Glob(filepath.Join(built.cache, "dflash-runner", "data", "*", "answers", "prompts.safetensors"))
	if err != nil || len(prompts) == 0 {
		t.Fatalf("want the prompts of one set of data in the cache, got %v, %v", prompts, err)
	}
	exact := filepath.Join(h.dir, "exact")
	h.must(0, "export", "cpu-test", "--checkpoint", "step-16", "--dtype", "float32", "--to", exact)
	var got struct {
		Figures map[string]float64 `json:"figures"`
		Facts   map[string]string  `json:"facts"`
	}
	h.must(0, "eval", exact, "--target", targetOf(t, h, "cpu-test"), "--prompts", prompts[0], "--count", "8", "--new-tokens", "24", "--json").json(t, &got)
	if a := got.Figures["acceptance"]; math.Abs(a-*s.AcceptanceAfter) > 1e-9 {
		t.Errorf("eval of the export: want the acceptance of the run, %v, got %v and %v", *s.AcceptanceAfter, got.Figures, got.Facts)
	}
	if got.Figures["lossless"] != 8 {
		t.Errorf("eval: want all 8 texts equal, got %v", got.Figures)
	}
}

// checkAgain: a second up makes nothing again that is there, takes the next
// name, and gives the same bits.
func checkAgain(t *testing.T, h *home, first admin.Summary) {
	h.must(0, "up", "-f", built.config, "--plain")
	s := summaryOf(t, h, "cpu-test-2")
	for _, stage := range s.Stages {
		made := stage.Name == "environment" || stage.Name == "target" || stage.Name == "regenerate" || stage.Name == "prepare"
		if made != (stage.State == admin.StageReused) {
			t.Errorf("stage %s: got %s", stage.Name, stage.State)
		}
	}
	if s.Name != "cpu-test-2" || s.Exit != 0 || s.Chain != first.Chain {
		t.Errorf("want run cpu-test-2 with chain %s, got %s, exit %d, chain %s", first.Chain, s.Name, s.Exit, s.Chain)
	}
	want := survivors(t, h.journal("cpu-test"))
	survivors(t, h.journal("cpu-test-2")).equal(t, want, steps)
	if read(t, h.path("cpu-test", "export", "model.safetensors")) != read(t, h.path("cpu-test-2", "export", "model.safetensors")) {
		t.Errorf("the exports of two equal runs differ")
	}
}

// read gives a file's bytes.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// targetOf gives the directory of a run's target.
func targetOf(t *testing.T, h *home, run string) string {
	t.Helper()
	var manifest struct {
		Target struct {
			Directory string `json:"directory"`
		} `json:"target"`
	}
	if err := json.Unmarshal([]byte(read(t, h.path(run, "manifest.json"))), &manifest); err != nil {
		t.Fatal(err)
	}
	return manifest.Target.Directory
}
