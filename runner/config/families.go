package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// families is what transformers takes where a config.json is silent, by
// model_type: published ones leave out what equals it, Gemma 3's even heads
// and vocabulary. python/tests/test_families_config.py holds it against
// transformers itself. Left out here: what is computed from the rest.
//
//go:embed families.json
var families []byte

// silent gives the defaults of a family: none, where it has none here.
func silent(kind string) (Model, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(families, &all); err != nil {
		return Model{}, fmt.Errorf("decode families: %w", err)
	}
	var m Model
	if all[kind] == nil {
		return m, nil
	}
	return m, json.Unmarshal(all[kind], &m)
}

// causal ends the names of classes that predict a next token.
var causal = [...]string{"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"}

// family refuses a target that workers would refuse later: what is no causal
// decoder, and layers in which packed documents would mix.
func (k *checker) family(m Model) {
	predicts := len(m.Architectures) == 0 || slices.ContainsFunc(m.Architectures, func(name string) bool {
		return slices.ContainsFunc(causal[:], func(end string) bool { return strings.HasSuffix(name, end) })
	})
	if !predicts || m.EncoderDecoder {
		k.add("target.directory", "encoders, encoder-decoders and classifiers have no next token to draft",
			"want a causal language model, got model_type %s, architectures %v", m.Type, m.Architectures)
		return
	}
	for i, kind := range m.LayerTypes {
		if kind != "full_attention" && kind != "sliding_attention" {
			k.add("target.directory", "states that run on, and chunks counted from the row's start, mix packed documents",
				"config.json: layer_types[%d]: want full_attention or sliding_attention, got %s", i, kind)
			break
		}
	}
	if b := string(m.Bidirectional); b == "true" || b == `"all"` {
		k.add("target.directory", "", "config.json: use_bidirectional_attention: want false, got %s", b)
	}
	if m.LogitCap != nil {
		k.add("target.directory", "a drafter is trained on the logits of the borrowed head, without a cap", "config.json: final_logit_softcapping: want none, got %g", *m.LogitCap)
	}
}
