package bench

import (
	"context"

	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// bytesVocabulary is that of the byte-level tokenizer, which a random target
// gets where its vocabulary has as many (python/dflash_runner/tokenizer.py). A
// run wants a tokenizer, and uses of it no more than the mask token.
const bytesVocabulary = 259

// targetLayers are those that a workload's target has (python/bench/shape.py).
const targetLayers = 36

// randomTarget asks target.py for a target of random weights, and for samples
// of random tokens where Samples is above 0.
type randomTarget struct {
	Directory    string `json:"directory"`
	Vocabulary   int    `json:"vocabulary"`
	Hidden       int    `json:"hidden"`
	Intermediate int    `json:"intermediate"`
	Layers       int    `json:"layers"`
	Heads        int    `json:"heads"`
	KVHeads      int    `json:"kv_heads"`
	HeadDim      int    `json:"head_dim"`
	Tied         bool   `json:"tied"`   // head and embedding are one
	DType        string `json:"dtype"`  // of the weights
	Device       string `json:"device"` // that they are drawn on, as its process is told it
	Samples      int    `json:"samples"`
	MinTokens    int    `json:"min_tokens"` // of a sample
	MaxTokens    int    `json:"max_tokens"`
}

// randomOf has the sizes of a configuration's embedded target, and samples that
// fill its rows. They are drawn on the CPU, where they are the same everywhere.
func randomOf(c *config.Config, directory string, samples int) randomTarget {
	e, longest := c.Target.Embedded, c.Training.Buckets[len(c.Training.Buckets)-1]
	return randomTarget{Directory: directory, Vocabulary: bytesVocabulary, Hidden: e.HiddenSize, Intermediate: e.IntermediateSize, Layers: e.Layers,
		Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.HeadDim, Tied: true, DType: "float32", Device: placement.CPU, Samples: samples, MinTokens: max(2, longest/8), MaxTokens: longest}
}

// randomFor has the sizes of a workload's target, and samples of which each
// fills a row; where rows are shorter than the workload's, they are cut. They are
// drawn on the first of the devices.
func randomFor(s Shape, d Devices, directory string) randomTarget {
	return randomTarget{Directory: directory, Vocabulary: s.Vocabulary, Hidden: s.Hidden, Intermediate: s.Intermediate, Layers: targetLayers,
		Heads: s.Heads, KVHeads: s.KVHeads, HeadDim: s.HeadDim, DType: s.DType, Device: d.told(), Samples: 32 * rowsOfStep, MinTokens: s.Tokens, MaxTokens: s.Tokens}
}

// makeTarget writes a random target.
func (p *Python) makeTarget(ctx context.Context, d Devices, t randomTarget) error {
	return p.measure(ctx, nil, p.on(d.place(0), d.threads()), "target.py", t)
}
