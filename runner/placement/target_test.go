package placement

import (
	"math"
	"testing"
)

// TestForward compares with the most bytes that lived at once in a forward of a
// random Qwen3 on a CPU, weights not counted: every tensor that transformers
// 5.17 made and let go of, counted one by one. Each row has another moment at
// which that is.
func TestForward(t *testing.T) {
	for _, c := range []struct {
		at    string
		m     Model
		r     Rows
		e     uint64
		mib   float64 // counted
		apart bool
	}{
		{"the MLP", Model{Hidden: 512, Intermediate: 1536, Heads: 8, KVHeads: 4, HeadDim: 64}, Rows{Bucket: 2048, Captured: 5}, 2, 36.547, false},
		{"the MLP, layers apart", Model{Hidden: 1024, Intermediate: 3072, Heads: 8, KVHeads: 2, HeadDim: 128}, Rows{Bucket: 512, Captured: 3}, 2, 15.512, true},
		{"the masks, before the first layer", Model{Hidden: 64, Intermediate: 128, Heads: 2, KVHeads: 1, HeadDim: 32}, Rows{Bucket: 4096, Captured: 3}, 4, 49.188, true},
		{"the rotation", Model{Hidden: 512, Intermediate: 256, Heads: 8, KVHeads: 8, HeadDim: 128}, Rows{Bucket: 1024, Captured: 6}, 2, 23.524, true},
		{"a norm", Model{Hidden: 1024, Intermediate: 64, Heads: 2, KVHeads: 2, HeadDim: 32}, Rows{Bucket: 256, Captured: 1}, 2, 3.602, true},
		{"the queries' norm", Model{Hidden: 256, Intermediate: 64, Heads: 16, KVHeads: 2, HeadDim: 64}, Rows{Bucket: 256, Captured: 1}, 2, 3.037, true},
	} {
		c.r.Apart = c.apart
		got := float64(c.m.forward(c.r, Use{Element: c.e})) / (1 << 20)
		if math.Abs(got/c.mib-1) > 0.02 {
			t.Errorf("%s: got %.3f MiB, counted %.3f", c.at, got, c.mib)
		}
	}
}

// TestForwardOnGPU: the mask is made again as what is added to the scores,
// which counts where attention is the most, and windows have a mask of their own.
func TestForwardOnGPU(t *testing.T) {
	m, r := Model{Hidden: 64, Intermediate: 64, Heads: 2, KVHeads: 1, HeadDim: 32}, Rows{Bucket: 4096, Captured: 5}
	cpu, gpu := m.forward(r, Use{Element: 2}), m.forward(r, Use{Element: 2, CUDA: true})
	if gpu <= cpu || gpu > cpu+2*4096*4096 {
		t.Errorf("got %d on a GPU beside %d", gpu, cpu)
	}
	m.Masks = 2
	if got := m.forward(r, Use{Element: 2, CUDA: true}); got != gpu+4096*4096 {
		t.Errorf("two masks: got %d, want %d", got, gpu+4096*4096)
	}
}

// TestTiled: where rows are compiled, twice the tokens take a little more than twice the memory, no masks
// among it, and what warm-up compares counts where a row is short or a window long.
func TestTiled(t *testing.T) {
	m := Model{Layers: 1, Hidden: 64, Intermediate: 64, Heads: 2, KVHeads: 1, HeadDim: 32, Vocab: 100}
	u, r := Use{Element: 2, CUDA: true, Tiles: true}, Rows{Bucket: 8192, Captured: 1}
	long := m.tiled(r, u)
	// held 8192*2*(64 + 2*32), lists 8*64*65 + 4*8192; the MLP, 8192*2*(2*64+3*64), is the most beside it
	if want := uint64(8192*2*128 + 8*64*65 + 4*8192 + 8192*2*320); long != want {
		t.Errorf("got %d, want %d", long, want)
	}
	if got := m.forward(r, u); got < long+8192*8192 {
		t.Errorf("under masks: got %d beside %d", got, long)
	}
	if got := TargetMemory(m, m, r, u).Activations; got != long {
		t.Errorf("activations: got %d, want %d", got, long)
	}
	u.Replay = true
	if got := TargetMemory(m, m, Rows{Bucket: 8192, Captured: 1, EachBytes: 7}, u).Recorded; got != long+7 {
		t.Errorf("recorded: got %d, want %d", got, long+7)
	}
	m.Window = 4096
	if got, want := TargetMemory(m, m, r, u).Activations, m.forward(Rows{Bucket: 8192 + comparedTokens, Captured: 1}, u); got != want {
		t.Errorf("with a window: got %d, want %d", got, want)
	}
	m.Masks = 2
	if got := m.tiled(r, u); got != long+8*64*65+4*8192 {
		t.Errorf("two kinds of layers: got %d beside %d", got, long)
	}
}

// TestDigestOfWeights: warm-up takes more to digest the largest weight than a
// short row takes, up to the piece that is digested at once.
func TestDigestOfWeights(t *testing.T) {
	m := Model{Layers: 1, Hidden: 4096, Intermediate: 12288, Heads: 32, KVHeads: 8, HeadDim: 128, Vocab: 151936}
	if got := TargetMemory(m, m, Rows{Bucket: 64, Captured: 1}, Use{Element: 2}).Activations; got != foldElements*foldBytes {
		t.Errorf("got %d, want %d", got, foldElements*foldBytes)
	}
	if got := m.largest(); got != 151936*4096 {
		t.Errorf("largest: got %d", got)
	}
	m.Sparse, m.Experts, m.ExpertIntermediate = 1, 512, 768
	if got := m.largest(); got != 512*2*4096*768 {
		t.Errorf("largest of experts: got %d", got)
	}
}
