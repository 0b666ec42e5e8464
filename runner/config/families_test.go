package config

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestReadFamilies reads config.json as it is published and as transformers 5
// saves it. What is silent there is what transformers makes of it.
func TestReadFamilies(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"gemma 3 4B: nested, without heads, vocabulary or positions",
			`{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 256,
			"text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
			"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}, "vision_config": {"hidden_size": 1152, "num_attention_heads": 16}}`,
			"gemma3_text 34x2560 mlp 10240 heads 8/4x256 vocab 262208 positions 131072 theta 1e+06 tied true sparse 0x0"},
		{"gemma 3, its kind of text left out, untied outside",
			`{"model_type": "gemma3", "tie_word_embeddings": false, "text_config": {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 300}}`,
			"gemma3_text 4x64 mlp 9216 heads 8/4x256 vocab 300 positions 131072 theta 1e+06 tied false sparse 0x0"},
		{"gemma 3 text as saved: rope by kind of layer",
			`{"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
			"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "max_position_embeddings": 32768, "use_bidirectional_attention": false,
			"rope_parameters": {"full_attention": {"rope_theta": 2000000.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
			"final_logit_softcapping": null, "layer_types": ["sliding_attention", "full_attention"]}`,
			"gemma3_text 18x640 mlp 2048 heads 4/1x256 vocab 262144 positions 32768 theta 2e+06 tied true sparse 0x0"},
		{"mistral 7B, head_dim null",
			`{"model_type": "mistral", "head_dim": null, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
			"num_key_value_heads": 8, "rope_theta": 1000000.0, "sliding_window": null, "vocab_size": 32768, "max_position_embeddings": 32768}`,
			"mistral 32x4096 mlp 14336 heads 32/8x128 vocab 32768 positions 32768 theta 1e+06 tied false sparse 0x0"},
		{"mistral, head_dim apart from hidden size",
			`{"model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "num_attention_heads": 32, "num_hidden_layers": 40, "vocab_size": 131072}`,
			"mistral 40x5120 mlp 14336 heads 32/8x128 vocab 131072 positions 131072 theta 10000 tied false sparse 0x0"},
		{"llama 3.2 1B",
			`{"model_type": "llama", "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16,
			"num_key_value_heads": 8, "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256, "max_position_embeddings": 131072,
			"rope_scaling": {"factor": 32.0, "rope_type": "llama3"}}`,
			"llama 16x2048 mlp 8192 heads 32/8x64 vocab 128256 positions 131072 theta 500000 tied true sparse 0x0"},
		{"llama, old: a key and a value for each head",
			`{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}`,
			"llama 32x4096 mlp 11008 heads 32/32x128 vocab 32000 positions 2048 theta 10000 tied false sparse 0x0"},
		{"qwen 3: heads of 128 unless said",
			`{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
			"rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "tie_word_embeddings": true, "max_position_embeddings": 40960}`,
			"qwen3 28x1024 mlp 3072 heads 16/8x128 vocab 151936 positions 40960 theta 1e+06 tied true sparse 0x0"},
		{"qwen 3 with experts in every second layer but the first",
			`{"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 6, "head_dim": 128, "num_experts": 64,
			"decoder_sparse_step": 2, "mlp_only_layers": [1]}`,
			"qwen3_moe 6x2048 mlp 6144 heads 32/4x128 vocab 151936 positions 32768 theta 10000 tied false sparse 2x64"},
		{"a family that is not known here",
			`{"model_type": "other", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 6, "vocab_size": 300, "num_local_experts": 8}`,
			"other 6x64 mlp 96 heads 4/4x16 vocab 300 positions 0 theta 10000 tied false sparse 6x8"},
		{"experts by a third name, the first layers dense",
			`{"model_type": "other", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 6, "vocab_size": 300, "n_routed_experts": 16, "first_k_dense_replace": 2}`,
			"other 6x64 mlp 0 heads 4/4x16 vocab 300 positions 0 theta 10000 tied false sparse 4x16"},
	} {
		m, err := ReadModel(model(t, nil, map[string]string{"config.json": c.text}))
		if got := brief(m); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v\nwant %s", c.name, got, err, c.want)
		}
	}
}

// TestReadSaved reads what transformers saves of the tests' own small models:
// python/tests/test_families_config.py holds the file against it.
func TestReadSaved(t *testing.T) {
	text, err := os.ReadFile("testdata/saved.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"gemma3": "gemma3_text%s theta 1e+06 tied true sparse 0x0", "gemma3-wrapped": "gemma3_text%s theta 1e+06 tied true sparse 0x0",
		"llama": "llama%s theta 10000 tied true sparse 0x0", "mistral": "mistral%s theta 10000 tied false sparse 0x0",
		"qwen3": "qwen3%s theta 10000 tied false sparse 0x0", "qwen3-windows": "qwen3%s theta 10000 tied false sparse 0x0",
		"qwen3-moe": "qwen3_moe%s theta 10000 tied false sparse 6x8"}
	for name, w := range want {
		m, err := ReadModel(model(t, nil, map[string]string{"config.json": string(all[name])}))
		if got, want := brief(m), fmt.Sprintf(w, " 6x32 mlp 48 heads 4/2x12 vocab 97 positions 256"); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
		}
		k := &checker{Config: &Config{}}
		if k.family(m); len(k.problems) > 0 {
			t.Errorf("%s: got %v", name, k.problems)
		}
	}
	if len(all) != len(want) {
		t.Errorf("got %d saved models, want %d", len(all), len(want))
	}
}

// brief writes the sizes of a model.
func brief(m Model) string {
	return fmt.Sprintf("%s %dx%d mlp %d heads %d/%dx%d vocab %d positions %d theta %g tied %t sparse %dx%d", m.Type, m.Layers, m.HiddenSize, m.IntermediateSize,
		m.Heads, m.KVHeads, m.HeadDim, m.VocabSize, m.MaxPositions, m.RopeTheta, m.Tied, m.SparseLayers(), m.Experts)
}

func TestReadNeedsSizes(t *testing.T) {
	for _, text := range []string{`{"model_type": "gemma3", "text_config": {"hidden_size": "big"}}`, `{"model_type": "other", "hidden_size": 64}`, `{"text_config": [1]}`} {
		if m, err := ReadModel(model(t, nil, map[string]string{"config.json": text})); err == nil {
			t.Errorf("%s: want an error, got %+v", text, m)
		}
	}
}

func TestTargetFamilies(t *testing.T) {
	cases := []struct {
		name, key string
		value     any
		want      string // empty: it loads
	}{
		{"causal", "architectures", []string{"Qwen3ForCausalLM"}, ""},
		{"multimodal", "architectures", []string{"Gemma3ForConditionalGeneration"}, ""},
		{"encoder", "architectures", []string{"BertForMaskedLM"}, "target.directory: want a causal language model, got model_type qwen3, architectures [BertForMaskedLM]"},
		{"classifier", "architectures", []string{"Qwen3ForSequenceClassification"}, "want a causal language model"},
		{"encoder and decoder", "is_encoder_decoder", true, "want a causal language model"},
		{"windows", "layer_types", []string{"full_attention", "sliding_attention"}, ""},
		{"recurrent", "layer_types", []string{"full_attention", "linear_attention"}, "layer_types[1]: want full_attention or sliding_attention, got linear_attention"},
		{"chunks", "layer_types", []string{"chunked_attention"}, "layer_types[0]: want full_attention or sliding_attention, got chunked_attention"},
		{"both ways", "use_bidirectional_attention", true, "use_bidirectional_attention: want false, got true"},
		{"images both ways", "use_bidirectional_attention", "vision", ""},
		{"capped logits", "final_logit_softcapping", 30.0, "final_logit_softcapping: want none, got 30"},
		{"no cap", "final_logit_softcapping", nil, ""},
	}
	for _, c := range cases {
		keys := map[string]any{c.key: c.value}
		for k, v := range qwen {
			keys[k] = v
		}
		_, err := parseAll("f.yaml", []byte(valid), []string{"target.directory=" + model(t, keys, tokenizer), "data.files=[a.jsonl]", "data.heldout_files=[b.jsonl]"})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: want none, got %v", c.name, err)
		case c.want != "":
			checkOne(t, err, []string{c.want})
		}
	}
}

// TestFamiliesAreRead: every key of the table is one that Model has.
func TestFamiliesAreRead(t *testing.T) {
	d := json.NewDecoder(strings.NewReader(string(families)))
	d.DisallowUnknownFields()
	var all map[string]Model
	if err := d.Decode(&all); err != nil || len(all) < 6 {
		t.Errorf("got %d families, %v", len(all), err)
	}
}
