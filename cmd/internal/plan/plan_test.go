package plan

import (
	"math"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

func load(t *testing.T, set ...string) *config.Config {
	t.Helper()
	c, err := config.Load("", append([]string{"training.buckets=[72,144]", "training.anchors=20", "training.steps=400", "training.epochs=0",
		"drafter.layers=3", "drafter.captured_layers=3", "drafter.block_size=8", "target.embedded.hidden_size=128", "target.embedded.layers=6",
		"data.regenerate.prompt_tokens=32", "data.regenerate.new_tokens=40"}, set...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEmbedded(t *testing.T) {
	c := load(t)
	p, err := Make(c, c.EmbeddedModel(), Machine{Cores: 2, Available: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Workers) != 3 || p.Workers[0].Name.Role != runner.Target || p.Workers[2].Device != placement.CPU || !p.Fits || p.Steps != 400 {
		t.Errorf("got %+v", p)
	}
	if p.Shapes.Queries != 160 || p.Shapes.Vocabulary != 259 || p.Shapes.RowsPerRank*2 != p.Shapes.RowsPerStep {
		t.Errorf("shapes: got %+v", p.Shapes)
	}
	// hidden 144 x 3 x 128 floats, tokens and documents 144 x 4 each, mask 144; header, 64-byte places and whole pages
	if least := uint64(64 + 144*3*128*4 + 144*9); p.Arenas.SlotBytes < least || p.Arenas.SlotBytes > least+4096 {
		t.Errorf("slot: want %d and a little, got %d", least, p.Arenas.SlotBytes)
	}
	if want := p.Arenas.SlotBytes * uint64(c.Workers.Slots); p.Arenas.Bytes != want {
		t.Errorf("arenas: want %d, got %d", want, p.Arenas.Bytes)
	}
	if p.MemoryBytes <= p.HostBytes+3*processBytes || p.HostBytes != p.Arenas.Bytes+3*p.ImageBytes || p.Arenas.Kind != "memfd" || len(p.Notes) != 0 || len(p.Devices) != 0 {
		t.Errorf("memory: got %d, host %d", p.MemoryBytes, p.HostBytes)
	}
	if e := p.FirstStep; e.Seconds <= launchSeconds || math.Abs(e.Seconds-e.LaunchSeconds-e.WarmUpSeconds-e.StepSeconds) > 1e-9 {
		t.Errorf("first step: got %+v", e)
	}
}

func TestTooSmall(t *testing.T) {
	c := load(t)
	p, err := Make(c, c.EmbeddedModel(), Machine{Cores: 2, Available: 1 << 20})
	if err != nil || p.Fits {
		t.Errorf("want a plan that does not fit, got %v, %v", p.Fits, err)
	}
}

func TestNoGPU(t *testing.T) {
	c := load(t, "workers.device=cuda", "training.compute_dtype=bfloat16", "drafter.attention=sdpa")
	if _, err := Make(c, c.EmbeddedModel(), Machine{Cores: 2}); err == nil {
		t.Error("want an error: there is no GPU")
	}
}

// TestReference compares the arithmetic with the counted 71.4 TFLOP of one
// sequence of the reference workload (python/bench/LOG.md), which counts
// visible pairs only and 15 of 16 slots in the head: ours is an upper bound.
func TestReference(t *testing.T) {
	c := load(t)
	w := work{config: c, captured: 5, rows: placement.Rows{Bucket: 3072, Anchors: 512, BlockSize: 16, Captured: 5},
		drafter: placement.Model{Layers: 5, Hidden: 4096, Intermediate: 12288, Heads: 32, KVHeads: 8, HeadDim: 128, Vocab: 151936}}
	once := w.drafterRow()
	w.config.Training.DrawsPerRow = 3
	if got := w.drafterRow(); got != 3*once {
		t.Errorf("three draws of a row: want %g operations, got %g", 3*once, got)
	}
	w.config.Training.DrawsPerRow = 1
	if got := w.drafterRow() / 1e12; got < 71.4 || got > 95 {
		t.Errorf("want 71.4 to 95 TFLOP, got %.1f", got)
	}
}

// TestDrafterOfExperts: a drafter is dense whatever its target is, and a head
// that is the embedding is counted once in both.
func TestDrafterOfExperts(t *testing.T) {
	c := load(t)
	m := config.Model{HiddenSize: 64, IntermediateSize: 192, Layers: 8, Heads: 4, KVHeads: 2, HeadDim: 16, VocabSize: 1000}
	dense, err := Make(c, m, Machine{Cores: 2})
	if err != nil {
		t.Fatal(err)
	}
	m.Experts, m.ActiveExperts, m.ExpertSize = 16, 2, 32
	sparse, err := Make(c, m, Machine{Cores: 2})
	if err != nil {
		t.Fatal(err)
	}
	if dense.Shapes.Parameters != sparse.Shapes.Parameters || dense.Workers[1].Memory != sparse.Workers[1].Memory {
		t.Errorf("drafter: got %+v beside %+v", sparse.Workers[1], dense.Workers[1])
	}
	more := uint64(8 * (16*(3*64*32+64) - 3*64*192) * 4)
	if got := sparse.Workers[0].Memory.Weights - dense.Workers[0].Memory.Weights; got != more {
		t.Errorf("target: want %d bytes more of weights, got %d", more, got)
	}
	m.Tied = true
	tied, err := Make(c, m, Machine{Cores: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range tied.Workers {
		if got := sparse.Workers[i].Memory.Weights - tied.Workers[i].Memory.Weights; got != 1000*64*4 {
			t.Errorf("%s: want %d bytes less of weights, got %d", tied.Workers[i].Name, 1000*64*4, got)
		}
	}
}

// TestArenas: slots lie in the targets' GPUs where drafters can read them there,
// and are counted once; else on the host, and why is said.
func TestArenas(t *testing.T) {
	gpus := []placement.GPU{{UUID: "a", Bytes: 40 << 30}, {UUID: "b", Bytes: 40 << 30}}
	apart := placement.Links{NoPeer: [][2]string{{"a", "b"}}}
	make := func(m Machine, set ...string) (Plan, error) {
		c := load(t, append([]string{"workers.device=cuda", "training.compute_dtype=bfloat16", "workers.drafters=1", "workers.colocate=false"}, set...)...)
		return Make(c, c.EmbeddedModel(), m)
	}
	device, err := make(Machine{GPUs: gpus})
	if err != nil {
		t.Fatal(err)
	}
	host, err := make(Machine{GPUs: gpus, Links: apart})
	if err != nil {
		t.Fatal(err)
	}
	if a := device.Arenas; a.Kind != "cuda_vmm" || a.Reason != "" {
		t.Errorf("arenas %+v", a)
	}
	if a := host.Arenas; a.Kind != "memfd" || !strings.Contains(a.Reason, "peer access") {
		t.Errorf("without peer access: arenas %+v", a)
	}
	more, fewer := device.Workers[0].MemoryBytes-host.Workers[0].MemoryBytes, host.HostBytes-device.HostBytes
	if more != device.Arenas.Bytes || fewer != host.Arenas.Bytes || more < fewer || more-fewer >= 2<<20 {
		t.Errorf("%d bytes more on the device and %d fewer on the host, want %d and %d", more, fewer, device.Arenas.Bytes, host.Arenas.Bytes)
	}
	if device.Workers[1].MemoryBytes != host.Workers[1].MemoryBytes {
		t.Error("a drafter's memory depends on the arenas' kind")
	}
	if p, err := make(Machine{GPUs: gpus}, "arenas.kind=memfd"); err != nil || p.Arenas.Kind != "memfd" || p.Arenas.Reason != "" {
		t.Errorf("memfd asked for: %+v, %v", p.Arenas, err)
	}
	if _, err := make(Machine{GPUs: gpus, Links: apart}, "arenas.kind=cuda_vmm"); runner.KindOf(err) != runner.Unavailable || err == nil {
		t.Errorf("cuda_vmm insisted on: got %v, want kind unavailable", err)
	}
}
