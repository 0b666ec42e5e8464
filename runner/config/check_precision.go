package config

import (
	"cmp"
	"fmt"
)

// PrecisionFP8 is the value of drafter.precision that is not the default.
const PrecisionFP8 = "fp8"

// fp8Multiple is what the sizes of products in fp8 are multiples of: GPUs take
// no others. A CPU would; it is held to the same, so that what runs there runs
// on a GPU.
const fp8Multiple = 16

// precision checks what products in fp8 ask for, m being the target. Its
// vocabulary may be any: the head is filled up.
func (k *checker) precision(m Model) {
	d := k.Drafter
	if d.Precision != PrecisionFP8 {
		return
	}
	if d.Attention == "sdpa" && k.Workers.Device == "cuda" {
		k.add("drafter.precision", "rounding that is not compiled costs more than it saves", "want compute_dtype with drafter.attention sdpa on a GPU, got fp8")
	}
	head := cmp.Or(d.HeadDim, m.HeadDim)
	for _, size := range []struct {
		path, what string
		value      int
	}{
		{"drafter.hidden_size", "", cmp.Or(d.HiddenSize, m.HiddenSize)},
		{"drafter.intermediate_size", "", cmp.Or(d.IntermediateSize, m.IntermediateSize)},
		{"drafter.heads", " of heads x head_dim", cmp.Or(d.Heads, m.Heads) * head},
		{"drafter.kv_heads", " of kv_heads x head_dim", cmp.Or(d.KVHeads, m.KVHeads) * head},
		{"training.anchors", " of anchors x drafter.block_size", k.Training.Anchors * d.BlockSize},
	} {
		k.multiple(size.path, size.what, size.value)
	}
	for i, b := range k.Training.Buckets {
		k.multiple(fmt.Sprintf("training.buckets[%d]", i), "", b)
	}
}

// multiple refuses a size that products in fp8 cannot have.
func (k *checker) multiple(path, what string, size int) {
	if size%fp8Multiple != 0 && k.ok(path) {
		k.add(path, "leave drafter.precision at compute_dtype", "want a multiple of %d%s with drafter.precision fp8, got %d", fp8Multiple, what, size)
	}
}
