package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// The names that others build on (README, "JSON that others build on").
// Fields may be added; one that goes away breaks somebody.
const (
	statusFields = `name state step steps_total epoch rows_committed loss tokens_per_s acceptance acceptance_step
		workers[].name workers[].role workers[].pid workers[].generation workers[].state workers[].device workers[].order
		workers[].since_ms workers[].rss_bytes workers[].certificate
		workers[].certificate.fingerprint workers[].certificate.attention workers[].certificate.buckets
		workers[].certificate.graphs workers[].certificate.cache workers[].certificate.dense_calls
		workers[].certificate.second_pass_compiles workers[].certificate.seconds workers[].certificate.peak_bytes
		workers[].certificate.step_ms workers[].certificate.dense_difference
		gate.width gate.holder gate.queue
		arenas[].worker arenas[].kind arenas[].slots[].state arenas[].slots[].version arenas[].slots[].holder
		failures stage stages[].name stages[].state stages[].done stages[].total stages[].eta_s stages[].seconds
		lineage images[].step images[].bytes images[].valid checkpoint heldout_loss skipped degraded scheduler
		exit exit_reason hint`
	failureFields = `[].worker [].generation [].role [].device [].cause [].message [].hint [].at [].exit_code [].oom_killed
		[].last_sign_ms [].peak_bytes [].forced_by_self`
	healthFields  = `status checks[].name checks[].status checks[].detail`
	summaryFields = `name steps rows samples tokens loss_first loss_last acceptance_before acceptance_after
		acceptance_nonlooping looping_share target_top1 prompts lossless speedup tokens_per_s
		workers[].name workers[].role workers[].device workers[].generations
		workers[].certificate.attention workers[].certificate.buckets workers[].certificate.graphs
		workers[].certificate.dense_calls workers[].certificate.second_pass_compiles workers[].certificate.seconds
		gate.width gate.max_holders gate.sequence arenas[].kind arenas[].slots arenas[].bytes arenas[].hand_offs
		exit exit_reason`
)

// wantFields wants all the named paths in a JSON text; "[]" stands for every
// element of a list that is not empty.
func wantFields(t *testing.T, what, text, fields string) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v\n%s", what, err, text)
	}
	for _, path := range strings.Fields(fields) {
		if !has(v, strings.Split(strings.ReplaceAll(path, "[]", ".[]"), ".")) {
			t.Errorf("%s: no field %s in\n%s", what, path, text)
		}
	}
}

func has(v any, path []string) bool {
	if len(path) == 0 {
		return true
	}
	if path[0] == "" { // of a path that begins with a list
		return has(v, path[1:])
	}
	if path[0] == "[]" {
		list, ok := v.([]any)
		for _, e := range list {
			ok = ok && has(e, path[1:])
		}
		return ok && len(list) > 0
	}
	object, ok := v.(map[string]any)
	if !ok {
		return false
	}
	inner, ok := object[path[0]]
	return ok && has(inner, path[1:])
}

func TestHas(t *testing.T) {
	var v any
	if err := json.Unmarshal([]byte(`{"a":[{"b":null},{"b":1,"c":[]}],"d":{"e":0}}`), &v); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"a.[].b": true, "a.[].c": false, "d.e": true, "d.f": false, "a.[].b.x": false, "d.[]": false} {
		if got := has(v, strings.Split(path, ".")); got != want {
			t.Errorf("%s: want %v, got %v", path, want, got)
		}
	}
}
