package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// sample is a line of a file of prepared tokens.
type sample struct {
	Tokens   []int `json:"tokens"`
	LossMask []int `json:"loss_mask"`
}

// write makes a file of samples; those at odd places in without have no two
// supervised tokens side by side, so no valid anchor.
func write(t *testing.T, path string, samples, without int) {
	t.Helper()
	var b strings.Builder
	for i := range samples + without {
		s := sample{}
		for k := range 40 {
			supervised := k >= 8
			if i >= samples {
				supervised = k%2 == 0
			}
			s.Tokens = append(s.Tokens, 97+(i*7+k*k)%26)
			s.LossMask = append(s.LossMask, map[bool]int{true: 1}[supervised])
		}
		line, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// alike makes a file of samples of one token, which are learnt at once.
func alike(t *testing.T, path string, samples int) {
	t.Helper()
	s := sample{}
	for k := range 40 {
		s.Tokens, s.LossMask = append(s.Tokens, 97), append(s.LossMask, map[bool]int{true: 1}[k >= 8])
	}
	line, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Repeat(append(line, '\n'), samples), 0o600); err != nil {
		t.Fatal(err)
	}
}

// own gives the settings of a run with a target and files of the user's own.
func own(target string, more ...string) []string {
	return set(append([]string{"target.directory=" + target, "data.files=[train.jsonl]", "data.heldout_files=[heldout.jsonl]",
		"data.regenerate.samples=0", "training.steps=4", "evaluate.prompt_tokens=8"}, more...)...)
}

// steered gives the settings of a run that the Python example orders.
func steered(t *testing.T) []string {
	t.Helper()
	script, err := filepath.Abs("../../plugins/examples/steer-by-loss/steer_by_loss.py")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := host.Sum(script)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"scheduler.use=steer-by-loss", "scheduler.required=true", "scheduler.deadline=1m",
		fmt.Sprintf("scheduler.plugins=[{name: steer-by-loss, path: %q, sha256: %s, config: {strength: 8.0}}]", script, sum)}
}

// TestOwnFiles: a user's own target, files and Python, in a directory whose path
// is too long for a socket. Workers greet on stdout before the handshake, and
// two samples cannot be trained on. A scheduling plugin in Python, which runs
// with the Python that the user named, gives the order: a horizon is a step and a
// row a sample, so that the losses of either file steer what comes soon.
func TestOwnFiles(t *testing.T) {
	if testing.Short() {
		return
	}
	reference := want(t)
	t.Parallel()
	h := newHome(t)
	h.dir = filepath.Join(h.dir, strings.Repeat("a-long-way-down/", 8))
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(h.dir, "train.jsonl"), 20, 2)
	alike(t, filepath.Join(h.dir, "alike.jsonl"), 20)
	write(t, filepath.Join(h.dir, "heldout.jsonl"), 16, 0)
	noisy := filepath.Join(h.dir, "python")
	script := "#!/bin/sh\ncase \"$*\" in *dflash_runner.serve*) echo 'hello from a noisy module';; esac\nexec " + pyenvtest.Ensure(t).Python + " \"$@\"\n"
	if err := os.WriteFile(noisy, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	r := h.start(up("own", own(reference.target, append(steered(t), "data.files=[train.jsonl, alike.jsonl]", "training.buckets=[48]", "training.horizon_steps=1", "training.steps=6", "python.interpreter="+noisy)...)...)...)
	h.until(r, "own", "the socket answers", func(s admin.Snapshot) bool { return s.Client != nil })
	h.must(0, "status", "own", "--json")
	r.wait().want(t, 0, "up")

	s := summaryOf(t, h, "own")
	if s.Steps != 6 || s.Exit != 0 || len(s.Failures) != 0 || s.Skipped != 2 {
		t.Errorf("want 6 steps, nobody dead and 2 samples counted as skipped, got %+v", s)
	}
	var last struct{ Plugin *admin.PluginStatus }
	h.must(0, "status", "own", "--json").json(t, &last)
	if p := last.Plugin; p == nil || p.Name != "steer-by-loss" || p.Calls == 0 || p.Refused != 0 || p.Ends != 0 {
		t.Errorf("plugin: want it asked and heard, got %+v", p)
	}
	var report struct{ Excluded uint64 }
	h.must(0, "journal", "verify", "own", "--json").json(t, &report)
	excluded := h.journal("own")
	for _, rec := range excluded {
		if rec.Type == "excluded" && !strings.Contains(rec.Record.Reason, "anchor") {
			t.Errorf("want the reason, got %+v", rec)
		}
	}
	h.followsLosses("own", excluded, func(sample int) bool { return sample < 22 })
	if count(excluded, "excluded") != 1 || report.Excluded != 2 {
		t.Errorf("want one record that settles 2 samples, got %d, %+v", count(excluded, "excluded"), report)
	}
}

// TestBadData: what is wrong with a file is said with its place, exit 2.
func TestBadData(t *testing.T) {
	if testing.Short() {
		return
	}
	reference := want(t)
	h := newHome(t)
	write(t, filepath.Join(h.dir, "heldout.jsonl"), 16, 0)
	train := filepath.Join(h.dir, "train.jsonl")
	for name, c := range map[string]struct {
		content string
		want    string
	}{
		"empty":     {"", "nothing to train on"},
		"not utf-8": {"{\"text\": \"caf\xe9 au lait\"}\n", "train.jsonl"},
		"short":     {"{\"tokens\": [97], \"loss_mask\": [1]}\n", "nothing to train on"},
		"anchors":   {"{\"tokens\": [97, 98, 99], \"loss_mask\": [1, 0, 1]}\n", "valid anchor"},
	} {
		if err := os.WriteFile(train, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		run := strings.ReplaceAll(name, " ", "-")
		r := h.must(2, up(run, own(reference.target)...)...)
		if !strings.Contains(r.err, "error: ") || !strings.Contains(r.err, c.want) || strings.Contains(r.err, "Traceback") {
			t.Errorf("%s: want an error with %q, got %s", name, c.want, r.err)
		}
		if s := summaryOf(t, h, run); s.Exit != 2 || !strings.Contains(s.ExitReason, c.want) {
			t.Errorf("%s: want exit 2 and the reason in the summary, got %d, %q", name, s.Exit, s.ExitReason)
		}
	}
}
