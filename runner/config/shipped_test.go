package config

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/configs"
)

// qwen8b is what Qwen3-8B's config.json says of its size.
const qwen8b = `{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}`

// TestEveryShippedConfiguration: each loads, says the same after it was
// resolved, and runs where its name says.
func TestEveryShippedConfiguration(t *testing.T) {
	files, err := fs.Glob(configs.Files, "*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("got %v, %v", files, err)
	}
	for _, file := range files {
		text, err := configs.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var set []string
		if strings.HasPrefix(file, "qwen3-8b") {
			set = append(set, "target.directory="+model(t, nil, map[string]string{"config.json": qwen8b, "tokenizer.json": "{}"}))
		}
		c, err := parseAll(file, text, set)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		sameAfterRoundTrip(t, c)
		device, attention := "cuda", "flex"
		if strings.HasPrefix(file, "cpu-") {
			device, attention = "cpu", "sdpa"
		}
		if c.Workers.Device != device || c.Drafter.Attention != attention || c.Target.Attention != attention || (c.Target.Replay == "true") != (device == "cuda") || device == "cuda" && (c.Training.ComputeDType != "bfloat16" || c.Target.DType != "bfloat16") {
			t.Errorf("%s: device %s, attention %s, %s", file, c.Workers.Device, c.Drafter.Attention, c.Training.ComputeDType)
		}
		if file == "cpu-test.yaml" {
			continue
		}
		for i, line := range strings.Split(string(text), "\n") {
			if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasSuffix(trimmed, ":") && !strings.Contains(line, "#") {
				t.Errorf("%s:%d: no comment: %s", file, i+1, line)
			}
		}
	}
}

// TestReferenceShapes: the large configuration has those of the reference.
func TestReferenceShapes(t *testing.T) {
	text, err := configs.Files.ReadFile("qwen3-8b-8gpu-5t3d.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseAll("q.yaml", text, []string{"target.directory=" + model(t, nil, map[string]string{"config.json": qwen8b, "tokenizer.json": "{}"})})
	if err != nil {
		t.Fatal(err)
	}
	if d, r := c.Drafter, c.Training; d.Layers != 5 || d.BlockSize != 16 || r.Anchors != 512 || len(r.Buckets) != 1 || r.Buckets[0] != 3072 || c.Workers.Targets != 5 || c.Workers.Drafters != 3 {
		t.Errorf("got %+v, %+v, %+v", d, r, c.Workers)
	}
	if ids := c.CapturedLayers(36); ids[0] != 1 || ids[4] != 33 || ids[2] != 17 {
		t.Errorf("captured: got %v", ids)
	}
}
