package placement

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// brief writes a plan as "target/0=a drafter/0=b | a:1 ...".
func brief(p Plan) string {
	var parts []string
	for _, w := range p.Workers {
		parts = append(parts, w.Worker.String()+"="+w.Device)
	}
	return strings.Join(parts, " ")
}

func gpus(names ...string) []GPU {
	var all []GPU
	for _, n := range names {
		all = append(all, GPU{UUID: n, Bytes: 100 << 20})
	}
	return all
}

func TestPlace(t *testing.T) {
	for name, c := range map[string]struct {
		w     Wanted
		want  string
		turns map[string]int
	}{
		"cpu, a core each": {Wanted{Targets: 1, Drafters: 2, Threads: 1, Cores: 2},
			"target/0=cpu drafter/0=cpu drafter/1=cpu", map[string]int{"cpu": 2}},
		"cpu, more threads than cores": {Wanted{Targets: 1, Drafters: 1, Threads: 8, Cores: 2},
			"target/0=cpu drafter/0=cpu", map[string]int{"cpu": 1}},
		"cpu, turns chosen": {Wanted{Targets: 1, Drafters: 1, Threads: 1, Cores: 8, Turns: 3},
			"target/0=cpu drafter/0=cpu", map[string]int{"cpu": 3}},
		"apart": {Wanted{Targets: 1, Drafters: 2, CUDA: true, GPUs: gpus("a", "b", "c"), Colocate: "false"},
			"target/0=a drafter/0=b drafter/1=c", map[string]int{"a": 1, "b": 1, "c": 1}},
		"in pairs": {Wanted{Targets: 1, Drafters: 2, CUDA: true, GPUs: gpus("a", "b", "c"), Colocate: "true", TargetBytes: 60 << 20, DrafterBytes: 40 << 20},
			"target/0=a drafter/0=a drafter/1=b", map[string]int{"a": 1, "b": 1}},
		"auto with room": {Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus("a", "b"), Colocate: "auto", TargetBytes: 60 << 20, DrafterBytes: 60 << 20},
			"target/0=a drafter/0=b", map[string]int{"a": 1, "b": 1}},
		"auto in pairs": {Wanted{Targets: 2, Drafters: 2, CUDA: true, GPUs: gpus("a", "b"), Colocate: "auto", TargetBytes: 50 << 20, DrafterBytes: 50 << 20},
			"target/0=a target/1=b drafter/0=a drafter/1=b", map[string]int{"a": 1, "b": 1}},
	} {
		p, err := Place(c.w)
		if err != nil || brief(p) != c.want || !reflect.DeepEqual(p.Turns, c.turns) {
			t.Errorf("%s: got %s %v, %v, want %s %v", name, brief(p), p.Turns, err, c.want, c.turns)
		}
	}
}

func TestPlaceRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		w    Wanted
		kind runner.Kind
		says string
	}{
		"no drafter":  {Wanted{Targets: 1, Threads: 1, Cores: 1}, runner.Invalid, "1 and 0"},
		"no cores":    {Wanted{Targets: 1, Drafters: 1}, runner.Invalid, "cores"},
		"no GPU":      {Wanted{Targets: 1, Drafters: 1, CUDA: true, Colocate: "auto"}, runner.Exhausted, "want a GPU, got none"},
		"a GPU twice": {Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus("a", "a"), Colocate: "auto"}, runner.Invalid, "devices[1]"},
		"two on one, not allowed": {Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus("a"), Colocate: "false"},
			runner.Invalid, "2 GPUs of their own, got 1"},
		"two of one role": {Wanted{Targets: 1, Drafters: 2, CUDA: true, GPUs: gpus("a"), Colocate: "true"}, runner.Invalid, "want 2 GPUs, got 1"},
		"a pair too large": {Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus("a"), Colocate: "auto", TargetBytes: 60 << 20, DrafterBytes: 41 << 20},
			runner.Exhausted, "place drafter/0 beside target/0 on a: want 101 MiB, got 100 MiB"},
		"one too large": {Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus("a", "b"), Colocate: "false", TargetBytes: 101 << 20},
			runner.Exhausted, "place target/0 on a"},
		"colocate": {Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus("a"), Colocate: "maybe"}, runner.Invalid, "maybe"},
	} {
		p, err := Place(c.w)
		if err == nil || runner.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: got %s, %v, want kind %s saying %q", name, brief(p), err, c.kind, c.says)
		}
	}
}

// TestParameters: Qwen3-8B has 8.19 B parameters by its model card, of which
// 6.95 B are not embeddings.
func TestParameters(t *testing.T) {
	m := Model{Layers: 36, Hidden: 4096, Intermediate: 12288, Heads: 32, KVHeads: 8, HeadDim: 128, Vocab: 151936}
	if got := m.Parameters(); got != 8190735360 {
		t.Errorf("got %d parameters, want 8190735360", got)
	}
	m.Tied = true
	if got := m.Parameters(); got != 8190735360-151936*4096 {
		t.Errorf("tied: got %d", got)
	}
}

// TestParametersOfExperts: Qwen3-30B-A3B has 30.5 B parameters by its model
// card, of which 29.9 B are not embeddings.
func TestParametersOfExperts(t *testing.T) {
	m := Model{Layers: 48, Hidden: 2048, Intermediate: 6144, Heads: 32, KVHeads: 4, HeadDim: 128, Vocab: 151936,
		Sparse: 48, Experts: 128, Active: 8, ExpertIntermediate: 768}
	if got := m.Parameters(); got != 30532122624 {
		t.Errorf("got %d parameters, want 30532122624", got)
	}
	if got := m.Width(); got != 8*768 {
		t.Errorf("width: got %d, want %d", got, 8*768)
	}
	m.Sparse, m.Active = 47, 2 // one layer is dense: 3*2048*6144 for 128*(3*2048*768 + 2048)
	if got := m.Parameters(); got != 30532122624+3*2048*6144-128*(3*2048*768+2048) || m.Width() != 6144 {
		t.Errorf("with a dense layer: got %d, width %d", got, m.Width())
	}
}

// TestMemoryByHand: a model small enough to count.
func TestMemoryByHand(t *testing.T) {
	m := Model{Layers: 1, Hidden: 2, Intermediate: 3, Heads: 1, KVHeads: 1, HeadDim: 2, Vocab: 5}
	r := Rows{Bucket: 4, Anchors: 2, BlockSize: 2, Captured: 3, SlotBytes: 100, EachBytes: 130}
	// A layer: q, k, v, o of 2x2, three of 2x3, norms 2+2+2+2: 16+18+8 = 42.
	// Trained: 42, final norm 2, projection 3*2*2 = 12, its norm 2: 58.
	if got := m.Trained(3); got != 58 {
		t.Errorf("trained: got %d, want 58", got)
	}
	got := DrafterMemory(m, r, Use{Element: 4, Dense: true})
	// norm(2) = 8. A layer: 4 queries of 2*8 + 2*8 + 8 + 16 + 8 + 48 = 112; joined keys and values
	// 2*4*2*8 = 128; keys of the context 4*8 = 32; scores 2*1*4*8*4 = 256: 864.
	// Once: context 4*16 = 64, noise and last norm 4*24 = 96, head 2*4*2*2 = 32: 192.
	// At its top: logits of 2 slots 40*5/2 = 100, an MLP's backward 4*(36+16) = 208.
	want := Memory{Weights: 58*4 + 20*4, Gradients: 232, Optimiser: 464, Activations: 864 + 192 + 208, Saved: 232, RowBuffers: 200}
	if got != want || got.Total() != 312+232+464+1264+232+200 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// norm(2) = 12 below float32: 4 queries of 24+8+12+8+12+24 = 88, 64 joined, 48 of the context, scores
	// 128: 592; once 4*16 + 4*20 + 16 = 160; at its top the backward, 4*(18+16) = 136.
	half := DrafterMemory(m, r, Use{Element: 2, Dense: true, CUDA: true})
	if half.Weights != 58*4+20*2+58*2 || half.Activations != 592+160+136 || half.Context != contextBytes {
		t.Errorf("with compute copies: got %+v", half)
	}
	// Compiled: 2*(4*(8+8+2+9) + 4*8 + 4*2) + 4*4 = 312; once 2*2*2*(4+4+2) = 80; at its top the backward,
	// 2*4*(9+4) = 104, as the logits take 2*(2*5*2) = 40.
	if flex := DrafterMemory(m, r, Use{Element: 2, CUDA: true}); flex.Activations != 312+80+104 {
		t.Errorf("compiled: got %+v", flex)
	}
	// Two query heads of 2 share keys and values of 2: copied, the joined ones are twice as wide, 2*2*(4+4)*2 more.
	shared := m
	shared.Heads = 2
	alone, copied := DrafterMemory(shared, r, Use{Element: 2, CUDA: true}), DrafterMemory(shared, r, Use{Element: 2, CUDA: true, CopyKeys: true})
	if copied.Activations != alone.Activations+64 {
		t.Errorf("copied keys: got %d beside %d", copied.Activations, alone.Activations)
	}
	// In fp8: a layer's 16 + 18 weights and a head of 16 rows of 2, each with its transpose, 2*(34+32) = 132; an
	// input and a gradient with theirs, 4*4*3 = 48.
	of, eight := DrafterMemory(m, r, Use{Element: 2, CUDA: true}), DrafterMemory(m, r, Use{Element: 2, CUDA: true, FP8: true})
	if eight.Weights != of.Weights+132 || eight.Activations != of.Activations+48 || eight.Allocated() != of.Allocated()+180 {
		t.Errorf("in fp8: got %+v beside %+v", eight, of)
	}
	// Recorded: the rows they read, and beside peers a second row's activations.
	for _, c := range []struct {
		use  Use
		want uint64
	}{{Use{Element: 2, CUDA: true}, 0}, {Use{Element: 2, CUDA: true, Replay: true}, 130}, {Use{Element: 2, CUDA: true, Replay: true, Peers: true}, 130 + 312 + 80 + 104}} {
		if got := DrafterMemory(m, r, c.use); got.Recorded != c.want || got.Allocated() != DrafterMemory(m, r, Use{Element: 2, CUDA: true}).Allocated()+c.want {
			t.Errorf("%+v: recorded: want %d, got %+v", c.use, c.want, got)
		}
	}
	if half.Workspace != 2*workspaceBytes || got.Workspace != 0 {
		t.Errorf("workspace: got %d on a GPU and %d on a CPU", half.Workspace, got.Workspace)
	}
	if half.Total() != half.Allocated()+contextBytes {
		t.Errorf("in all: got %d", half.Total())
	}
	// 42 + 2 + 20 elements of 2 bytes. Largest weight of 10 elements: 400 to digest. A row: held 4*2*2*3 = 48,
	// mask 16, rotary 2*4*2*2 = 32; the last layer at its most the end, 4*2*2*4 = 64, attention 4*2*(2+4+4) + 2*16 = 112,
	// rotation 4*2*(2+2+4+8) = 128, MLP 4*2*(4+9) = 104, a norm 4*(4+4+16) = 96: 224. The digest is more.
	wanted := Memory{Context: contextBytes, Weights: 128, Activations: 400, Workspace: workspaceBytes, Slots: 99, Evaluation: 58*2 + 4*5*4*5/2}
	if got := TargetMemory(m, m, r, Use{Element: 2, CUDA: true, Slots: 99}); got != wanted {
		t.Errorf("target: got %+v", got)
	}
	wanted.Recorded = 224 + 130 // the forward, and a row of each length
	if got := TargetMemory(m, m, r, Use{Element: 2, CUDA: true, Slots: 99, Replay: true}); got != wanted {
		t.Errorf("target whose rows are replayed: got %+v", got)
	}
	if got := ImageBytes(m, 3); got != 58*12 {
		t.Errorf("image: got %d", got)
	}
	if got := HostBytes(600, 2, 10); got != 630 {
		t.Errorf("host: got %d, want 630", got)
	}
}

// TestReferenceMemory: the drafter of the reference workload stays below the 40
// GiB that it may take, and its fixed part is what can be counted: 1.05 B
// parameters of 18 bytes, embedding and head of 2.
func TestReferenceMemory(t *testing.T) {
	m := Model{Layers: 5, Hidden: 4096, Intermediate: 12288, Heads: 32, KVHeads: 8, HeadDim: 128, Vocab: 151936}
	r := Rows{Bucket: 3072, Anchors: 512, BlockSize: 16, Captured: 5, SlotBytes: 126 << 20}
	if got := m.Trained(5); got < 1_045_000_000 || got > 1_055_000_000 {
		t.Fatalf("parameters: got %d", got)
	}
	got := DrafterMemory(m, r, Use{Element: 2, CUDA: true})
	if fixed := got.Weights + got.Gradients + got.Optimiser; fixed != m.Trained(5)*18+2*151936*4096*2 {
		t.Errorf("fixed part: got %d", fixed)
	}
	// Without what warm-up saved and the second row buffer, 25.98 GiB were measured on an H200.
	step := got.Allocated() - got.Saved - r.SlotBytes - m.Vocab*m.Hidden*2 // embedding and head were one there
	if gib := float64(step) / (1 << 30); gib < 0.97*25.98 || gib > 1.03*25.98 {
		t.Errorf("want within 3 %% of 25.98 GiB, got %.2f: %+v", gib, got)
	}
	if gib := float64(got.Total()) / (1 << 30); gib > 40 {
		t.Errorf("in all: want at most 40 GiB, got %.2f", gib)
	}
	if OnDevice(1) != 2<<20 || OnDevice(4<<20) != 4<<20 {
		t.Errorf("rounded up: got %d, %d", OnDevice(1), OnDevice(4<<20))
	}
}
