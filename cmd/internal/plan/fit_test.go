package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// qwen is Qwen3-8B's size.
func qwen() config.Model {
	return config.Model{HiddenSize: 4096, IntermediateSize: 12288, Layers: 36, Heads: 32, KVHeads: 8, HeadDim: 128, VocabSize: 151936, MaxPositions: 40960}
}

// large is a configuration of the reference workload on GPUs.
func large(t *testing.T, set ...string) *config.Config {
	t.Helper()
	return load(t, append([]string{"workers.device=cuda", "target.embedded.sequence_tokens=2048", "training.compute_dtype=bfloat16", "target.dtype=bfloat16", "drafter.attention=flex",
		"training.buckets=[3072]", "training.anchors=512", "drafter.layers=5", "target.embedded.layers=36", "drafter.captured_layers=5",
		"drafter.block_size=16", "workers.drafters=1"}, set...)...)
}

// gpusOf gives GPUs of so many GiB.
func gpusOf(gib ...uint64) Machine {
	m := Machine{Cores: 16, Available: 1 << 40}
	for i, n := range gib {
		m.GPUs = append(m.GPUs, placement.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, Name: "H200", Bytes: n << 30})
	}
	return m
}

// TestRecorded: memory for recordings is planned where they are replayed: with
// peers that sum in the only row of a step's rank none is.
func TestRecorded(t *testing.T) {
	for _, c := range []struct {
		drafters, rows, draws int
		replay                string
		want                  string
	}{{1, 1, 1, "true", "a row"}, {2, 2, 1, "true", "nothing"}, {2, 4, 1, "true", "both"}, {2, 2, 3, "true", "both"}, {2, 4, 1, "false", "nothing"}} {
		conf := large(t, fmt.Sprint("workers.drafters=", c.drafters), "workers.targets=2", fmt.Sprint("training.rows_per_step=", c.rows),
			fmt.Sprint("training.draws_per_row=", c.draws), "drafter.flex.replay="+c.replay)
		p, err := Make(conf, qwen(), gpusOf(140, 140))
		if err != nil {
			t.Fatal(err)
		}
		m := p.Workers[slices.IndexFunc(p.Workers, func(w Worker) bool { return w.Name.Role == runner.Drafter })].Memory
		row := m.RowBuffers / 2
		if want := map[string]uint64{"nothing": 0, "a row": row, "both": row + m.Activations}[c.want]; m.Recorded != want {
			t.Errorf("%d drafters, %d rows a step of %d draws, replay %s: want %d bytes recorded, got %d", c.drafters, c.rows, c.draws, c.replay, want, m.Recorded)
		}
	}
	// A target keeps what a row takes and leaves, where it replays: it computes beside as well.
	for _, replay := range []string{"true", "false"} {
		p, err := Make(large(t, "target.replay="+replay), qwen(), gpusOf(140))
		if err != nil {
			t.Fatal(err)
		}
		m := p.Workers[slices.IndexFunc(p.Workers, func(w Worker) bool { return w.Name.Role == runner.Target })].Memory
		if (m.Recorded > 0) != (replay == "true") {
			t.Errorf("target.replay %s: got %d bytes recorded", replay, m.Recorded)
		}
	}
	// No mask is held of rows by flex, and a plan says where they are made otherwise.
	notes, took := map[string]int{}, map[string]uint64{}
	for _, attention := range []string{"flex", "sdpa"} {
		p, err := Make(large(t, "target.attention="+attention, "training.buckets=[8192]"), qwen(), gpusOf(140))
		if err != nil || p.RowAttention != attention {
			t.Fatalf("target.attention %s: got %q, %v", attention, p.RowAttention, err)
		}
		took[attention] = p.Workers[slices.IndexFunc(p.Workers, func(w Worker) bool { return w.Name.Role == runner.Target })].Memory.Activations
		notes[attention] = strings.Count(strings.Join(p.Notes, "\n"), "target.attention: sdpa on a GPU is the model's own")
	}
	if took["sdpa"] < took["flex"]+8192*8192*9/10 || notes["flex"] != 0 || notes["sdpa"] != 1 {
		t.Errorf("activations: got %v, notes %v", took, notes)
	}
	// A row of each length is kept to be read: of 1024, 2048 and 3072 tokens twice the longest, but for padding.
	p, err := Make(large(t, "training.buckets=[1024,2048,3072]"), qwen(), gpusOf(140))
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Workers[slices.IndexFunc(p.Workers, func(w Worker) bool { return w.Name.Role == runner.Drafter })].Memory; m.Recorded < m.RowBuffers || m.Recorded > m.RowBuffers+1<<12 {
		t.Errorf("three lengths: want as much as two of the longest, %d bytes, got %d", m.RowBuffers, m.Recorded)
	}
}

func TestFit(t *testing.T) {
	for name, c := range map[string]struct {
		set     []string
		m       Machine
		anchors int
		buckets []int
	}{
		"room for all":                  {nil, gpusOf(140), 512, []int{3072}},
		"a pair on less":                {nil, gpusOf(51), 336, []int{3072}},
		"as few as a row may have":      {nil, gpusOf(47), 96, []int{2304}},
		"shorter rows before too few":   {nil, gpusOf(46), 64, []int{1536}},
		"apart there is more room":      {nil, gpusOf(35, 35), 512, []int{3072}},
		"grown to the reference":        {[]string{"training.buckets=[512,1024]", "training.anchors=64"}, gpusOf(140), 511, []int{512, 3072}},
		"more than the reference stays": {[]string{"training.buckets=[8192]", "training.anchors=1024"}, gpusOf(140), 1024, []int{8192}},
		"the host decides too":          {[]string{"training.buckets=[1024]", "training.anchors=64"}, func() Machine { m := gpusOf(140); m.Available = 60 << 30; return m }(), 512, []int{3072}},
	} {
		conf := large(t, c.set...)
		before := fmt.Sprintf("%+v", conf.Training)
		f, err := Fit(conf, qwen(), c.m)
		if err != nil || f.Shapes.Anchors != c.anchors || !slices.Equal(f.Shapes.Buckets, c.buckets) {
			t.Errorf("%s: want %d and %v, got %d and %v, %v", name, c.anchors, c.buckets, f.Shapes.Anchors, f.Shapes.Buckets, err)
			continue
		}
		if got := fmt.Sprintf("%+v", conf.Training); got != before {
			t.Errorf("%s: the configuration was changed: %s", name, got)
		}
		checkFitted(t, name, conf, f, c.m)
	}
}

// checkFitted applies the changes to the configuration: the plan must be that,
// must fit, and one step more must not.
func checkFitted(t *testing.T, name string, conf *config.Config, f Fitted, m Machine) {
	t.Helper()
	after := *conf
	for _, change := range f.Changes {
		switch change.Path {
		case "training.buckets":
			after.Training.Buckets = f.Shapes.Buckets
		case "training.anchors":
			after.Training.Anchors = f.Shapes.Anchors
		default:
			t.Errorf("%s: changed %s", name, change.Path)
		}
	}
	p, err := Make(&after, qwen(), m)
	if err != nil || !p.Fits || fmt.Sprint(p) != fmt.Sprint(f.Plan) {
		t.Errorf("%s: with the changes: %v", name, err)
	}
	if top := min(max(topAnchors, conf.Training.Anchors), f.Shapes.Buckets[0]-1); f.Shapes.Anchors < top {
		after.Training.Anchors += anchorStep
		if p, err := Make(&after, qwen(), m); err == nil && p.Fits {
			t.Errorf("%s: %d more anchors would fit", name, anchorStep)
		}
	}
}

func TestFitRefuses(t *testing.T) {
	if _, err := Fit(large(t), qwen(), gpusOf(24)); runner.KindOf(err) != runner.Exhausted || !strings.Contains(err.Error(), "not even rows of 72 tokens fit") {
		t.Errorf("too small: got %v", err)
	}
	m := gpusOf(140)
	m.Available = 1 << 30
	if _, err := Fit(large(t), qwen(), m); runner.KindOf(err) != runner.Exhausted || !strings.Contains(err.Error(), "of the host, have 1024 MiB") {
		t.Errorf("too small a host: got %v", err)
	}
	if _, err := Fit(large(t), qwen(), Machine{Cores: 1}); runner.KindOf(err) != runner.Exhausted || !strings.Contains(err.Error(), "want a GPU, got none") {
		t.Errorf("no GPU: got %v", err)
	}
}

// TestOnGPUs: places, parts and notes of a pair that shares a GPU.
func TestOnGPUs(t *testing.T) {
	p, err := Make(large(t), qwen(), gpusOf(140))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Devices) != 1 || p.Devices[0].Wanted != p.Workers[0].MemoryBytes+p.Workers[1].MemoryBytes || p.Turns["GPU-0"] != 1 || p.Where("GPU-0") != "GPU 0" || p.Where("cpu") != "cpu" {
		t.Errorf("devices: got %+v, turns %v", p.Devices, p.Turns)
	}
	if p.Arenas.Kind != "cuda_vmm" || p.Workers[0].Memory.Slots != p.Arenas.Bytes || p.HostBytes != 3*p.ImageBytes || p.MemoryBytes != p.HostBytes+2*gpuProcessBytes+p.ImageBytes {
		t.Errorf("arenas: got %+v, host %d", p.Arenas, p.HostBytes)
	}
	for _, w := range p.Workers {
		if w.MemoryBytes != w.Memory.Total() || w.AllocatedBytes != w.Memory.Allocated() || w.Memory.Context == 0 {
			t.Errorf("%s: got %+v", w.Name, w)
		}
	}
	if len(p.Notes) != 1 || p.Notes[0] != "target/0 and drafter/0 share GPU 0 and take turns" {
		t.Errorf("notes: got %q", p.Notes)
	}
	p, err = Make(large(t, "drafter.attention=sdpa", "training.anchors=64"), qwen(), gpusOf(140, 140))
	if err != nil || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "sdpa on a GPU is dense") || len(p.Devices) != 2 {
		t.Errorf("dense, apart: got %q, %+v, %v", p.Notes, p.Devices, err)
	}
}
