package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// model writes a Hugging Face directory, without weights.
func model(t *testing.T, config map[string]any, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		files = merge(files, map[string]string{"config.json": string(text)})
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func merge(a, b map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range []map[string]string{a, b} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

var (
	qwen = map[string]any{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
		"num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 200}
	tokenizer = map[string]string{
		"tokenizer.json":        `{"added_tokens": [{"id": 258, "content": "<|mask|>"}], "model": {"vocab": {"a": 1}}}`,
		"tokenizer_config.json": `{"mask_token": {"content": "<|mask|>"}}`,
	}
)

func TestTarget(t *testing.T) {
	big := map[string]string{"tokenizer.json": `{"added_tokens": [{"id": 300, "content": "M"}]}`, "tokenizer_config.json": `{"mask_token": "M"}`}
	nested := map[string]any{"model_type": "gemma3", "text_config": qwen}
	cases := []struct {
		name  string
		model map[string]any
		files map[string]string
		set   []string
		want  []string // none: it loads
	}{
		{"good", qwen, tokenizer, nil, nil},
		{"nested text_config", nested, tokenizer, []string{"drafter.hidden_size=64"}, nil},
		{"no config.json", nil, tokenizer, nil, []string{"target.directory: read model", "no config.json"}},
		{"not JSON", nil, map[string]string{"config.json": "{"}, nil, []string{"want JSON of a model"}},
		{"not a model", map[string]any{"a": 1}, tokenizer, nil, []string{"want hidden_size"}},
		{"no tokenizer", qwen, nil, []string{"drafter.mask_token_id=9"}, []string{"target.directory: want a directory with a tokenizer"}},
		{"no mask token", qwen, map[string]string{"tokenizer.json": "{}"}, nil, []string{"drafter.mask_token_id: want an id, since the target's tokenizer has no mask token, got -1"}},
		{"hidden size", qwen, tokenizer, []string{"drafter.hidden_size=128"}, []string{"drafter.hidden_size: want the target's hidden size 64, got 128"}},
		{"hidden size, nested", nested, tokenizer, []string{"drafter.hidden_size=128"}, []string{"drafter.hidden_size: want the target's hidden size 64, got 128"}},
		{"mask token outside", qwen, tokenizer, []string{"drafter.mask_token_id=300"}, []string{"drafter.mask_token_id: want an id in the target's vocabulary, 0 to 299, got 300"}},
		{"tokenizer's mask token outside", qwen, big, nil, []string{"0 to 299, got the tokenizer's mask token 300"}},
		{"layer out of range", qwen, tokenizer, []string{"target.layer_ids=[1,8]"}, []string{"target.layer_ids[1]: want a layer of the target before its last, 0 to 6, got 8"}},
		{"too many captured", qwen, tokenizer, []string{"drafter.captured_layers=6"}, []string{"want at most 5, three fewer than the target's 8 layers, got 6"}},
		{"row longer than positions", qwen, tokenizer, []string{"training.buckets=[256]"}, []string{"training.buckets: want at most the target's 200 positions, got 256"}},
		{"heads", qwen, tokenizer, []string{"drafter.kv_heads=3"}, []string{"drafter.kv_heads: want a divisor of the 4 heads, got 3"}},
		{"no data", qwen, tokenizer, []string{"data.files=[]"}, []string{"data.files: want at least one file"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := model(t, c.model, c.files)
			set := append([]string{fmt.Sprintf("target.directory=%q", dir), "data.files=[a.jsonl]", "data.heldout_files=[b.jsonl]"}, c.set...)
			_, err := parseAll("f.yaml", []byte(valid), set)
			if c.want == nil && err == nil {
				return
			}
			checkOne(t, err, c.want)
		})
	}
}

// checkOne wants one problem that holds every text.
func checkOne(t *testing.T, err error, want []string) {
	t.Helper()
	for _, w := range want {
		checkProblems(t, err, []string{w})
	}
	if want == nil {
		t.Errorf("want no problem, got %v", err)
	}
}

func TestInitFrom(t *testing.T) {
	target := model(t, qwen, tokenizer)
	for name, c := range map[string]struct {
		key   string
		value int
		want  string
	}{
		"hidden size": {"hidden_size", 128, "drafter.init_from: want a drafter of the target's hidden size 64, got 128"},
		"vocabulary":  {"vocab_size", 301, "drafter.init_from: want a drafter of the target's vocabulary 300, got 301"},
		"layers":      {"num_hidden_layers", 3, "drafter.layers: want the 3 layers of drafter.init_from, got 2"},
		"target":      {"num_target_layers", 9, "drafter.init_from: want a drafter for a target of 8 layers, got 9"},
	} {
		shape := map[string]any{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300, "num_target_layers": 8}
		shape[c.key] = c.value
		_, err := parseAll("f.yaml", []byte(valid), []string{"target.directory=" + target, "data.files=[a.jsonl]",
			"data.heldout_files=[b.jsonl]", "drafter.init_from=" + model(t, shape, nil)})
		t.Run(name, func(t *testing.T) { checkProblems(t, err, []string{c.want}) })
	}
}

// TestLayerIDs: upstream's values (the published rule).
func TestLayerIDs(t *testing.T) {
	for _, c := range []struct {
		layers, captured int
		want             []int
	}{
		{36, 5, []int{1, 9, 17, 25, 33}},
		{64, 5, []int{1, 16, 31, 46, 61}},
		{6, 3, []int{1, 2, 3}},
		{36, 1, []int{18}},
		{7, 3, []int{1, 2, 4}}, // 2.5 rounds to even
	} {
		if got := LayerIDs(c.layers, c.captured); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d layers, %d captured: want %v, got %v", c.layers, c.captured, c.want, got)
		}
	}
}

// TestEmbeddedMask: a mask token outside the embedded target's vocabulary is
// refused before anything is built.
func TestEmbeddedMask(t *testing.T) {
	if _, err := Load("", []string{"drafter.mask_token_id=258"}); err != nil {
		t.Errorf("the last id: %v", err)
	}
	_, err := Load("", []string{"drafter.mask_token_id=259"})
	if err == nil || !strings.Contains(err.Error(), "drafter.mask_token_id: want an id in the target's vocabulary, 0 to 258, got 259") {
		t.Errorf("one beyond: got %v", err)
	}
}
