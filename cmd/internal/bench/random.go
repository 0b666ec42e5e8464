package bench

import (
	"context"

	"github.com/dflash-runner/dflash-runner/runner/config"
)

// bytesVocabulary is that of the byte-level tokenizer, which a random target
// gets where its vocabulary is of that size (python/dflash_runner/tokenizer.py).
const bytesVocabulary = 259

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
	Samples      int    `json:"samples"`
	MinTokens    int    `json:"min_tokens"` // of a sample
	MaxTokens    int    `json:"max_tokens"`
}

// randomOf has the sizes of a configuration's embedded target, and samples that
// fill its rows.
func randomOf(c *config.Config, directory string, samples int) randomTarget {
	e, longest := c.Target.Embedded, c.Training.Buckets[len(c.Training.Buckets)-1]
	return randomTarget{Directory: directory, Vocabulary: bytesVocabulary, Hidden: e.HiddenSize, Intermediate: e.IntermediateSize, Layers: e.Layers,
		Heads: e.Heads, KVHeads: e.KVHeads, HeadDim: e.HeadDim, Samples: samples, MinTokens: max(2, longest/8), MaxTokens: longest}
}

// makeTarget writes a random target.
func (p *Python) makeTarget(ctx context.Context, t randomTarget) error {
	return p.measure(ctx, nil, p.environment(), "target.py", t)
}
