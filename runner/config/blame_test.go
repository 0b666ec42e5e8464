package config

import "testing"

// TestBlamesTheSet: a rule over several keys tells of the flag that broke it, and
// of the file only what stands there.
func TestBlamesTheSet(t *testing.T) {
	dir := model(t, qwen, tokenizer)
	for _, c := range []struct {
		name, text string
		set        []string
		want       []string
	}{
		{"a size that another one must fit into", valid, []string{"training.buckets=[16]", "training.steps=9"},
			[]string{
				"--set training.buckets=[16]: training.anchors: want at most 15, what a row of the smallest bucket 16 holds, got 20; training.anchors stands at f.yaml:3:47 (every anchor",
				"--set training.buckets=[16]: data.regenerate.new_tokens: want prompt_tokens + new_tokens of at most the largest bucket 16",
			}},
		{"a count that the file's is a multiple of", valid, []string{"workers.drafters=3"},
			[]string{"--set workers.drafters=3: training.rows_per_step: want a multiple of the 3 drafters, got 4; training.rows_per_step stands at f.yaml:3:66 (3 or 6 would do)"}},
		{"a flag's own key stays at its flag", valid, []string{"data.regenerate.new_tokens=100", "training.buckets=[120]", "log.level=info"},
			[]string{"--set data.regenerate.new_tokens=100: data.regenerate.new_tokens: want prompt_tokens + new_tokens of at most the largest bucket 120"}},
		{"what the file has is the file's", valid + "failure: {backoff_max: 1ms}\n", []string{"training.steps=9", "failure.backoff_min=2ms", "failure.backoff_min=1s"},
			[]string{"--set failure.backoff_min=1s: failure.backoff_max: want at least backoff_min 1s, got 1ms; failure.backoff_max stands at f.yaml:6:24"}},
		{"of the file alone", valid + "failure: {backoff_max: 1ms}\n", []string{"training.steps=9"},
			[]string{"f.yaml:6:24: failure.backoff_max: want at least backoff_min 1s, got 1ms"}},
		{"a target of its own", "version: 1\ntarget: {directory: " + dir + "}\ndata: {files: [a], heldout_files: [b]}\ntraining: {steps: 4, buckets: [160], anchors: 20}\ndrafter: {layers: 2, captured_layers: 3, hidden_size: 64, mask_token_id: 258}\n",
			[]string{"drafter.heads=3"},
			[]string{"--set drafter.heads=3: drafter.kv_heads: want a divisor of the 3 heads, got 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseAll("f.yaml", []byte(c.text), c.set)
			checkProblems(t, err, c.want)
		})
	}
}
