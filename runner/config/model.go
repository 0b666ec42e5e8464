package config

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Model is what a Hugging Face directory says about a target or a drafter.
type Model struct {
	HiddenSize       int     `json:"hidden_size"`
	IntermediateSize int     `json:"intermediate_size"`
	Layers           int     `json:"num_hidden_layers"`
	Heads            int     `json:"num_attention_heads"`
	KVHeads          int     `json:"num_key_value_heads"`
	HeadDim          int     `json:"head_dim"`
	VocabSize        int     `json:"vocab_size"`
	MaxPositions     int     `json:"max_position_embeddings"`
	RMSNormEps       float64 `json:"rms_norm_eps"`
	RopeTheta        float64 `json:"rope_theta"`
	Type             string  `json:"model_type"`
	TargetLayers     int     `json:"num_target_layers"` // drafters only
	BlockSize        int     `json:"block_size"`        // drafters only

	Rope *struct {
		Theta float64 `json:"rope_theta"`
	} `json:"rope_parameters"`
	Text *Model `json:"text_config"` // models of several modalities nest the language model
}

// ReadModel reads a directory's config.json.
func ReadModel(directory string) (Model, error) {
	var m Model
	file := filepath.Join(directory, "config.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return m, runner.Errorf(runner.Invalid, "read model %s: want a Hugging Face directory, got no config.json", directory).
			WithHint("download the model first; names of a model hub are not looked up")
	}
	if err != nil {
		return m, runner.Errorf(runner.Invalid, "read model: %w", err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, runner.Errorf(runner.Invalid, "read model %s: want JSON of a model: %w", file, err)
	}
	if m.Text != nil {
		m = *m.Text
	}
	m.fill()
	if m.HiddenSize <= 0 || m.Layers <= 0 || m.VocabSize <= 0 || m.Heads <= 0 {
		return m, runner.Errorf(runner.Invalid, "read model %s: want hidden_size, num_hidden_layers, num_attention_heads and vocab_size, got %d, %d, %d and %d",
			file, m.HiddenSize, m.Layers, m.Heads, m.VocabSize)
	}
	return m, nil
}

// fill gives what transformers gives where a config.json is silent.
func (m *Model) fill() {
	if m.Rope != nil && m.Rope.Theta > 0 {
		m.RopeTheta = m.Rope.Theta
	}
	if m.RopeTheta == 0 {
		m.RopeTheta = 10000
	}
	if m.KVHeads == 0 {
		m.KVHeads = m.Heads
	}
	if m.HeadDim == 0 && m.Heads > 0 {
		m.HeadDim = m.HiddenSize / m.Heads
	}
	if m.RMSNormEps == 0 {
		m.RMSNormEps = 1e-6
	}
}

// EmbeddedModel is the model that the embedded recipe builds. Its vocabulary is
// known once it was built.
func (c *Config) EmbeddedModel() Model {
	e := c.Target.Embedded
	return Model{
		HiddenSize: e.HiddenSize, IntermediateSize: e.IntermediateSize, Layers: e.Layers, Heads: e.Heads,
		KVHeads: e.KVHeads, HeadDim: e.HeadDim, RMSNormEps: 1e-6, RopeTheta: 10000, Type: "qwen3",
	}
}

// LayerIDs spreads captured layers over a target, from the second layer to the
// third from last, as upstream's build_target_layer_ids does: the middle layer
// for one, else round(1 + i*(layers-4)/(captured-1)), halves to even as Python
// rounds. Ids are distinct when layers >= captured + 3.
func LayerIDs(layers, captured int) []int {
	if captured == 1 {
		return []int{layers / 2}
	}
	ids := make([]int, captured)
	for i := range ids {
		ids[i] = int(math.RoundToEven(1 + float64(i)*float64(layers-4)/float64(captured-1)))
	}
	return ids
}

// CapturedLayers gives the layers to capture from a target of that many layers.
func (c *Config) CapturedLayers(layers int) []int {
	if len(c.Target.LayerIDs) > 0 {
		return c.Target.LayerIDs
	}
	return LayerIDs(layers, c.Drafter.CapturedLayers)
}
