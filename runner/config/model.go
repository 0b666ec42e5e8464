package config

import (
	"cmp"
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
	Window           int     `json:"sliding_window"` // tokens that a layer sees at most, where some layer slides
	Heads            int     `json:"num_attention_heads"`
	KVHeads          int     `json:"num_key_value_heads"`
	HeadDim          int     `json:"head_dim"`
	VocabSize        int     `json:"vocab_size"`
	MaxPositions     int     `json:"max_position_embeddings"`
	RMSNormEps       float64 `json:"rms_norm_eps"`
	RopeTheta        float64 `json:"rope_theta"` // of the layers that see everything
	Tied             bool    `json:"tie_word_embeddings"`
	Type             string  `json:"model_type"`
	TargetLayers     int     `json:"num_target_layers"` // drafters only
	BlockSize        int     `json:"block_size"`        // drafters only

	Experts        int   `json:"num_experts"`       // of a sparse layer; 0: every layer is dense
	LocalExperts   int   `json:"num_local_experts"` // the same, as others spell it
	RoutedExperts  int   `json:"n_routed_experts"`
	ActiveExperts  int   `json:"num_experts_per_tok"`
	ExpertSize     int   `json:"moe_intermediate_size"`
	SparseStep     int   `json:"decoder_sparse_step"`
	DenseLayers    []int `json:"mlp_only_layers"`
	FirstDense     int   `json:"first_k_dense_replace"`
	EncoderDecoder bool  `json:"is_encoder_decoder"`

	Architectures []string        `json:"architectures"`
	LayerTypes    []string        `json:"layer_types"`
	Bidirectional json.RawMessage `json:"use_bidirectional_attention"`
	LogitCap      *float64        `json:"final_logit_softcapping"`
	Rope          *rope           `json:"rope_parameters"`
}

// rope is rotary parameters: one set, or one for each kind of layer.
type rope struct {
	Theta float64 `json:"rope_theta"`
	Full  *rope   `json:"full_attention"`
}

// ReadModel reads a directory's config.json: of a model of several modalities
// the part of its language model. Where it is silent it means what
// transformers makes of that, which depends on the family.
func ReadModel(directory string) (Model, error) {
	file := filepath.Join(directory, "config.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Model{}, runner.Errorf(runner.Invalid, "read model %s: want a Hugging Face directory, got no config.json", directory).
			WithHint("download the model first; names of a model hub are not looked up")
	}
	if err != nil {
		return Model{}, runner.Errorf(runner.Invalid, "read model: %w", err)
	}
	m, err := decodeModel(text)
	if err != nil {
		return m, runner.Errorf(runner.Invalid, "read model %s: want JSON of a model: %w", file, err)
	}
	if m.HiddenSize <= 0 || m.Layers <= 0 || m.VocabSize <= 0 || m.Heads <= 0 {
		return m, runner.Errorf(runner.Invalid, "read model %s: want hidden_size, num_hidden_layers, num_attention_heads and vocab_size, got %d, %d, %d and %d",
			file, m.HiddenSize, m.Layers, m.Heads, m.VocabSize)
	}
	return m, nil
}

// decodeModel reads the text of a config.json over its family's defaults.
func decodeModel(text []byte) (Model, error) {
	var outer struct {
		Type           string          `json:"model_type"`
		Architectures  []string        `json:"architectures"`
		EncoderDecoder bool            `json:"is_encoder_decoder"`
		Tied           *bool           `json:"tie_word_embeddings"`
		Text           json.RawMessage `json:"text_config"`
	}
	if err := json.Unmarshal(text, &outer); err != nil {
		return Model{}, err
	}
	kind := outer.Type
	nested := len(outer.Text) > 0 && string(outer.Text) != "null"
	if nested {
		text = outer.Text
		inner := struct {
			Type string `json:"model_type"`
		}{outer.Type + "_text"} // as transformers names the part of a wrapper
		if err := json.Unmarshal(text, &inner); err != nil {
			return Model{}, err
		}
		kind = inner.Type
	}
	m, err := silent(kind)
	if err != nil {
		return m, err
	}
	if nested && outer.Tied != nil {
		m.Tied = *outer.Tied
	}
	experts := m.Experts
	m.Experts = 0 // a default must not hide another spelling
	if err := json.Unmarshal(text, &m); err != nil {
		return m, err
	}
	m.Experts = cmp.Or(m.Experts, m.LocalExperts, m.RoutedExperts, experts)
	m.Type, m.Architectures, m.EncoderDecoder = kind, outer.Architectures, outer.EncoderDecoder
	m.fill()
	return m, nil
}

// fill gives what follows from the rest of a config.json.
func (m *Model) fill() {
	if r := m.Rope; r != nil {
		if r.Full != nil {
			r = r.Full
		}
		if r.Theta > 0 {
			m.RopeTheta = r.Theta
		}
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
	if m.ExpertSize == 0 {
		m.ExpertSize = m.IntermediateSize
	}
}

// SparseLayers counts the layers that have experts in place of one MLP.
func (m *Model) SparseLayers() int {
	if m.Experts == 0 {
		return 0
	}
	dense := map[int]bool{}
	for _, i := range m.DenseLayers {
		dense[i] = true
	}
	n := 0
	for i := range m.Layers {
		if i >= m.FirstDense && !dense[i] && (i+1)%max(m.SparseStep, 1) == 0 {
			n++
		}
	}
	return n
}

// embeddedVocabulary is the embedded target's: bytes and three special tokens, as
// python/dflash_runner/tokenizer.py writes them.
const embeddedVocabulary = 259

// EmbeddedModel is the model that the embedded recipe builds.
func (c *Config) EmbeddedModel() Model {
	e := c.Target.Embedded
	return Model{
		HiddenSize: e.HiddenSize, IntermediateSize: e.IntermediateSize, Layers: e.Layers, Heads: e.Heads,
		KVHeads: e.KVHeads, HeadDim: e.HeadDim, RMSNormEps: 1e-6, RopeTheta: 10000, Type: "qwen3",
		VocabSize: embeddedVocabulary, MaxPositions: max(1024, 4*e.SequenceTokens), // as the job that trains it says
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
