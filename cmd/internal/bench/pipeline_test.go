package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func TestPipeline(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	steps := []decided{{at, 4, 900}, {at.Add(time.Second), 4, 100}, {at.Add(2 * time.Second), 2, 300}} // what the first brought was made before
	s := admin.Summary{Name: "x", Rows: 10, Steps: 3, SupervisorCPUS: 0.02, SupervisorCPU: admin.SupervisorCPU{Parts: map[string]float64{"start": 0.006, "train": 0.012}, Rows: 8, RowMS: share(1.5)}, SupervisorPeakBytes: 40 << 20, StartedAt: at.Add(-30 * time.Second), ImageStall: admin.Stall{Commits: 1, Seconds: 0.08, LongestS: 0.08, Share: share(0.04)},
		Stages: []admin.Stage{{Name: "warm_up", Seconds: 7}, {Name: "export", Seconds: 9}}, Arenas: []admin.SummaryArena{{Kind: "memfd", HandOffs: 10}},
		Workers: []admin.SummaryWorker{
			{Name: runner.Worker{Role: runner.Drafter}, Usage: map[string]float64{"train": 1, "commit": 0.5, "row": 0.25, "turn": 0.25}, Certificate: &admin.SummaryCertificate{Attention: "sdpa", Cache: "none", Seconds: 3}},
			{Name: runner.Worker{Role: runner.Target}, Usage: map[string]float64{"slot": 2}}, {Name: runner.Worker{Role: runner.Target, Rank: 1}},
		}}
	r := start("pipeline")
	if err := r.pipeline(s, steps, named(t, WorkloadTiny)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"rows a second": 3, "steps a second": 1, "context tokens a second (N 8, block 4, S 64, vocabulary 128)": 200, "drafter/0 busy": 75,
		"drafter/0 busy with train": 50, "drafter/0 idle for row": 12.5, "target/0 busy": 0, "target/0 idle for slot": 100, "supervisor CPU time a committed row": 2, "supervisor CPU time a row of training (8 rows)": 1.5, "supervisor CPU time, start": 0.006,
		"start to first step": 30, "commits waited for images": 4, "longest wait of a commit for an image": 80, "stage warm_up": 7, "warm-up of drafter/0 (sdpa, cache none)": 3} {
		if f := figure(t, r, name); f.Value != want {
			t.Errorf("%s: got %v, want %v", name, f.Value, want)
		}
	}
	for _, f := range r.Figures {
		if strings.HasPrefix(f.Name, "target/1") || strings.Contains(f.Name, "export") {
			t.Errorf("got %s, of which nothing is known or asked", f.Name)
		}
	}
	if r.Shape.Rows != 10 || r.Facts["arenas"] != "memfd with 10 hand-offs" || *figure(t, r, "supervisor CPU time a row of training").Met {
		t.Errorf("got %+v", r)
	}
	if err := start("pipeline").pipeline(s, steps[:1], Shape{}); runner.KindOf(err) != runner.Invalid {
		t.Errorf("one step: got %v, want kind invalid", err)
	}
}

func share(x float64) *float64 { return &x }

func TestDecidedSteps(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events.jsonl")
	text := `{"at":"2026-01-02T03:04:05Z","event":"step decided","step":1,"figures":{"rows":4,"tokens":90,"loss":null}}` + "\n" +
		`{"at":"2026-01-02T03:04:06Z","event":"row dropped","message":"step decided"}` + "\n" +
		`{"at":"2026-01-02T03:04:07Z","event":"step decided","step":2,"figures":{"rows":3,"tokens":80}}` + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := decidedSteps(t.Context(), file)
	if err != nil || len(got) != 2 || got[0].Rows != 4 || got[1].Tokens != 80 || got[1].At.Sub(got[0].At) != 2*time.Second {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := decidedSteps(t.Context(), file+".none"); runner.KindOf(err) != runner.NotFound {
		t.Errorf("no events: got %v", err)
	}
}

// TestShapeOf: what a run on a GPU computed on is read on a machine without one.
func TestShapeOf(t *testing.T) {
	text, err := configs.Files.ReadFile("gpu-1.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := shapeOf(file)
	want := Shape{Workload: "gpu-1", Tokens: 2048, Anchors: 256, Block: 16, Vocabulary: 259, Hidden: 512, Intermediate: 1536, Layers: 3, Captured: 5,
		Heads: 8, KVHeads: 4, HeadDim: 64, DType: "bfloat16", Parameters: 10752384}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}
