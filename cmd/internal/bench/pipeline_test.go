package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
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
	if err := r.pipeline(s, events{decided: steps, images: []runner.Step{0, 1, 2, 3}}, named(t, WorkloadTiny), 25); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"rows a second": 3, "steps a second": 1, "context tokens a second (N 8, block 4, S 64, vocabulary 128)": 200, "drafter/0 busy": 75,
		"drafter/0 busy with train": 50, "drafter/0 idle for row": 12.5, "target/0 busy": 0, "target/0 idle for slot": 100, "supervisor CPU time a committed row": 2, "supervisor CPU time a row of training (8 rows)": 1.5, "supervisor CPU time, start": 0.006,
		"start to first step": 30, "commits waited for images": 4, "longest wait of a commit for an image": 80, "all waits of commits for images": 80, "commits that waited for an image": 1, "images taken while training (every 25 steps)": 2, "stage warm_up": 7, "warm-up of drafter/0 (sdpa, cache none)": 3} {
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
	if err := start("pipeline").pipeline(s, events{decided: steps[:1]}, Shape{}, 25); runner.KindOf(err) != runner.Invalid {
		t.Errorf("one step: got %v, want kind invalid", err)
	}
}

func share(x float64) *float64 { return &x }

func TestToldBy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events.jsonl")
	text := `{"at":"2026-01-02T03:04:05Z","event":"step decided","step":1,"figures":{"rows":4,"tokens":90,"loss":null}}` + "\n" +
		`{"at":"2026-01-02T03:04:06Z","event":"row dropped","message":"step decided"}` + "\n" +
		`{"at":"2026-01-02T03:04:07Z","event":"step decided","step":2,"figures":{"rows":3,"tokens":80}}` + "\n" +
		`{"at":"2026-01-02T03:04:08Z","event":"image taken","step":1}` + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := toldBy(t.Context(), file)
	got := all.decided
	if err != nil || all.during() != 1 || len(got) != 2 || got[0].Rows != 4 || got[1].Tokens != 80 || got[1].At.Sub(got[0].At) != 2*time.Second {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := toldBy(t.Context(), file+".none"); runner.KindOf(err) != runner.NotFound {
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
	got, every, err := shapeOf(file)
	want := Shape{Workload: "gpu-1", Tokens: 2048, Anchors: 256, Block: 16, Vocabulary: 259, Hidden: 512, Intermediate: 1536, Layers: 3, Captured: 5,
		Heads: 8, KVHeads: 4, HeadDim: 64, DType: "bfloat16", Parameters: 10752384}
	if err != nil || got != want || every != 100 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestRoles: what a row took each role, and what is asked of whom: of one GPU
// that it is full, of drafters apart that they wait for no quicker target.
func TestRoles(t *testing.T) {
	worker := func(role runner.Role, rank runner.Rank, device string, used map[string]float64, done map[string]uint64) admin.SummaryWorker {
		return admin.SummaryWorker{Name: runner.Worker{Role: role, Rank: rank}, Device: device, Usage: used, Done: done}
	}
	target := map[string]float64{"produce": 0.76, "evaluate": 2, "turn": 2.24}
	drafter := map[string]float64{"train": 1.92, "commit": 0.09, "turn": 2.9, "vote": 0.09} // 12 rows in 4 steps
	trained, made := map[string]uint64{"train": 12, "commit": 3}, map[string]uint64{"produce": 10}
	const full, idle = "one GPU's time in rows, at each role's time alone", "drafters idle"

	r := start("pipeline")
	r.roles([]admin.SummaryWorker{worker(runner.Target, 0, "GPU-a", target, made), worker(runner.Drafter, 0, "GPU-a", drafter, trained)})
	for name, want := range map[string]float64{"a row's time of a target (produce)": 76, "a row's time of a drafter (train)": 160, "a row's part of the update (commit)": 10,
		"a row's time of both roles": 246, "rows a second without evaluation": 4, full: 98.4} {
		if got := figure(t, r, name).Value; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if !*figure(t, r, full).Met || has(r, idle) {
		t.Errorf("one GPU: got %+v", r.Figures)
	}

	slow := map[string]float64{"produce": 4, "slot": 1}
	for name, c := range map[string]struct {
		target map[string]float64
		goal   bool
	}{"quicker target": {target, true}, "slower target": {slow, false}} {
		r := start("pipeline")
		r.roles([]admin.SummaryWorker{worker(runner.Target, 0, "GPU-a", c.target, made), worker(runner.Drafter, 0, "GPU-b", drafter, trained)})
		f := figure(t, r, idle)
		if math.Abs(f.Value-59.8) > 1e-9 || (f.Goal != nil) != c.goal || c.goal && *f.Met || has(r, full) {
			t.Errorf("%s: got %+v", name, r.Figures)
		}
	}
	r = start("pipeline")
	r.roles([]admin.SummaryWorker{worker(runner.Target, 0, "cpu", target, made), worker(runner.Drafter, 0, "cpu", drafter, trained)})
	if has(r, full) || has(r, idle) || !has(r, "a row's time of both roles") {
		t.Errorf("on a CPU, where roles share cores: got %+v", r.Figures)
	}
}

func has(r *Report, name string) bool {
	return slices.ContainsFunc(r.Figures, func(f Figure) bool { return f.Name == name })
}

// TestReference: the shipped configuration becomes a run of the reference on
// one device, of any scale, and has room for products in fp8.
func TestReference(t *testing.T) {
	text, err := configs.Files.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), referenceFile)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w := named(t, WorkloadW)
	small, err := w.Scaled(32)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of Pipeline
		on Devices
	}{{Pipeline{Shape: &w, Steps: 40}, Devices{GPUs: make([]placement.GPU, 1)}}, {Pipeline{Shape: &small, Steps: 3, Whole: true}, Devices{}}} {
		target := t.TempDir()
		asked := randomFor(*c.of.Shape, c.on, target)
		model := fmt.Sprintf(`{"model_type":"qwen3","architectures":["Qwen3ForCausalLM"],"vocab_size":%d,"hidden_size":%d,"intermediate_size":%d,"num_hidden_layers":%d,`+
			`"num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":%d,"max_position_embeddings":%d,"rms_norm_eps":1e-6}`,
			asked.Vocabulary, asked.Hidden, asked.Intermediate, asked.Layers, asked.Heads, asked.KVHeads, asked.HeadDim, max(512, asked.MaxTokens))
		for name, text := range map[string]string{"config.json": model, "tokenizer_config.json": `{"mask_token":"<|mask|>"}`, "tokenizer.json": `{"added_tokens":[{"id":2,"content":"<|mask|>"}]}`} {
			if err := os.WriteFile(filepath.Join(target, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := config.Load(file, append(c.of.reference(c.on), "drafter.precision=fp8", "target.directory="+quote(target), fmt.Sprintf("training.steps=%d", c.of.Steps+c.of.beyond()), "training.epochs=0"))
		if err != nil {
			t.Fatal(err)
		}
		if got.Training.Buckets[0] != c.of.Shape.Tokens || got.Training.Anchors != c.of.Shape.Anchors || got.Images.EverySteps != 25 || len(got.Workers.Devices) != 0 || got.Training.RowsPerStep != 4 {
			t.Errorf("got %+v", got)
		}
		if cuts := got.Training.StopAfter.Steps; c.of.cut() && (cuts != 40 || got.Training.Steps <= cuts) || !c.of.cut() && cuts != 0 {
			t.Errorf("got a stop after %d of %d steps", cuts, got.Training.Steps)
		}
		if asked.MinTokens != c.of.Shape.Tokens || asked.MaxTokens != asked.MinTokens || asked.Layers != 36 || asked.Vocabulary < bytesVocabulary || asked.Tied || asked.Device != c.on.told() {
			t.Errorf("got %+v", asked)
		}
	}
	other := w
	other.Tokens, other.Parameters, other.Rows = 1024, 7, 8
	if got := other.nameLike(w); got != "custom" {
		t.Errorf("other sizes: got %q", got)
	}
	other.Tokens = w.Tokens
	if got := other.nameLike(w); got != WorkloadW {
		t.Errorf("its sizes, counted: got %q", got)
	}
}

// TestCutRun: a run that is ended after its last step has not failed, with
// whatever code; one that did not come so far, or ended for another reason, has.
func TestCutRun(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, pipelineName)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(root, "up")
	if err := os.WriteFile(self, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		steps  int
		reason string
		cut    bool
	}{
		{40, "training.stop_after.steps: why", true}, {41, "training.stop_after.steps: why", true},
		{39, "training.stop_after.steps: why", false}, {40, "a crash: why", false},
	} {
		if err := os.WriteFile(filepath.Join(dir, "summary.json"), fmt.Appendf(nil, `{"steps":%d,"exit_reason":%q}`, c.steps, c.reason), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Pipeline{Self: self, Steps: 40, Shape: &Shape{}, root: root}.run(t.Context(), &Python{}, os.Environ(), "x.yaml", nil)
		if (err == nil) != c.cut || err != nil && runner.KindOf(err) != runner.Internal {
			t.Errorf("%+v: got %v", c, err)
		}
		if err := (Pipeline{Self: self, Steps: 40, Shape: &Shape{}, Whole: true, root: root}).run(t.Context(), &Python{}, os.Environ(), "x.yaml", nil); err == nil || !strings.Contains(err.Error(), "why") {
			t.Errorf("a whole run, %+v: got %v", c, err)
		}
	}
}
