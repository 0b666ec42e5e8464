package config

import "github.com/dflash-runner/dflash-runner/runner"

// CheckTarget applies the rules that need a target's own files, for a target
// that was built after Load. Load does so for target.directory.
func (c *Config) CheckTarget(directory string) error { return c.checkTarget(directory, nil).err() }

// checkTarget applies them beside what was found before: a rule over a value
// that is known to be wrong says nothing.
func (c *Config) checkTarget(dir string, before Problems) Problems {
	k := c.checker(before)
	m, err := ReadModel(dir)
	if err != nil {
		k.add("target.directory", runner.HintOf(err), "%s", err)
		return k.problems
	}
	if !HasTokenizer(dir) {
		k.add("target.directory", "copy tokenizer.json and tokenizer_config.json there", "want a directory with a tokenizer, got %s without one", dir)
	}
	k.family(m)
	if k.ok("target.layer_ids", "drafter.captured_layers") {
		k.layers(m.Layers)
	}
	k.sizes(m)
	k.mask(dir, m)
	k.initFrom(m)
	return k.problems
}

// sizes checks what the drafter shares with its target.
func (k *checker) sizes(m Model) {
	if h := k.Drafter.HiddenSize; h != 0 && h != m.HiddenSize {
		k.add("drafter.hidden_size", "0 takes the target's", "want the target's hidden size %d, got %d", m.HiddenSize, h)
	}
	if b := k.Training.Buckets; len(b) > 0 && m.MaxPositions > 0 && b[len(b)-1] > m.MaxPositions {
		k.add("training.buckets", "", "want at most the target's %d positions, got %d", m.MaxPositions, b[len(b)-1])
	}
	if k.Target.Attention == "flex" && k.Workers.Device == "cuda" && m.HeadDim > 0 && m.HeadDim < minFlexHeadDim {
		k.add("target.attention", "flex's matrix products take heads of 16 elements or more", "want sdpa for a target with heads of %d, got flex", m.HeadDim)
	}
	k.precision(m)
	heads, kv := k.Drafter.Heads, k.Drafter.KVHeads
	if heads == 0 {
		heads = m.Heads
	}
	if kv == 0 {
		kv = m.KVHeads
	}
	if k.ok("drafter.heads", "drafter.kv_heads") && heads%kv != 0 {
		k.add("drafter.kv_heads", "", "want a divisor of the %d heads, got %d", heads, kv)
	}
}

// mask checks the mask token against the vocabulary.
func (k *checker) mask(dir string, m Model) {
	if k.Drafter.MaskTokenID >= 0 {
		k.maskNamed(m)
		return
	}
	id, ok, err := MaskToken(dir)
	switch {
	case err != nil:
		k.add("target.directory", runner.HintOf(err), "%s", err)
	case !ok:
		k.add("drafter.mask_token_id", "name an unused id, such as 151669 for Qwen3; never the padding token", "want an id, since the target's tokenizer has no mask token, got -1")
	case id < 0 || id >= m.VocabSize:
		k.add("drafter.mask_token_id", "name an unused id of the vocabulary", "want an id in the target's vocabulary, 0 to %d, got the tokenizer's mask token %d", m.VocabSize-1, id)
	}
}

// maskNamed checks a mask token that the configuration names.
func (k *checker) maskNamed(m Model) {
	if id := k.Drafter.MaskTokenID; id >= m.VocabSize {
		k.add("drafter.mask_token_id", "-1 takes the tokenizer's own", "want an id in the target's vocabulary, 0 to %d, got %d", m.VocabSize-1, id)
	}
}

// initFrom checks a drafter to start from against the target.
func (k *checker) initFrom(m Model) {
	if k.Drafter.InitFrom == "" {
		return
	}
	d, err := ReadModel(k.Drafter.InitFrom)
	switch {
	case err != nil:
		k.add("drafter.init_from", runner.HintOf(err), "%s", err)
	case d.HiddenSize != m.HiddenSize:
		k.add("drafter.init_from", "it was trained for another target", "want a drafter of the target's hidden size %d, got %d", m.HiddenSize, d.HiddenSize)
	case d.VocabSize != m.VocabSize:
		k.add("drafter.init_from", "it was trained for another target", "want a drafter of the target's vocabulary %d, got %d", m.VocabSize, d.VocabSize)
	case d.Layers != k.Drafter.Layers:
		k.add("drafter.layers", "", "want the %d layers of drafter.init_from, got %d", d.Layers, k.Drafter.Layers)
	case d.TargetLayers != 0 && d.TargetLayers != m.Layers:
		k.add("drafter.init_from", "it was trained for another target", "want a drafter for a target of %d layers, got %d", m.Layers, d.TargetLayers)
	}
}
