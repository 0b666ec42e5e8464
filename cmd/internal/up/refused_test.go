package up

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// TestRefusedResumeLeavesTheRecord: another run's settings are refused at once
// and by name, and whatever is refused leaves the run's record as it was.
func TestRefusedResumeLeavesTheRecord(t *testing.T) {
	root := newBench(t).root
	t.Setenv("XDG_CACHE_HOME", filepath.Join(root, "cache"))
	runs := filepath.Join(root, "runs")
	c, err := config.Load("", append([]string{"run.directory=" + runs}, sets...))
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"lock": "", "config.yaml": string(text), "journal/000001.journal": "x", "summary.json": `{"exit":75}`, "status.json": `{"state":"ended"}`,
		"events.jsonl": "{}\n", "logs/supervisor.log": "line\n"}
	dir := filepath.Join(runs, "r")
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stderr, err := os.Create(filepath.Join(root, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	for set, want := range map[string]string{
		"target.embedded.steps=33": "target.embedded.steps: want what the run began with, ", "run.seed=99": "run.seed: ", "workers.drafters=1": "workers.drafters: want what the run began with, 2, got 1",
		"data.regenerate.samples=77": "data.regenerate.samples: ", "training.gamma=3": "training.gamma: ", "drafter.layers=2": "drafter.layers: ",
		"python.interpreter=/nowhere/python": "/nowhere/python", // refused later, with log, events and status open
	} {
		if err := stderr.Truncate(0); err != nil {
			t.Fatal(err)
		}
		ready := false
		code := Run(t.Context(), Options{ConfigPath: filepath.Join(dir, "config.yaml"), Name: "r", Set: []string{set}, Resume: true, Stderr: stderr, Ready: func(string) { ready = true }})
		said, err := os.ReadFile(stderr.Name())
		if err != nil || code != runner.ExitUsage || !strings.Contains(string(said), want) || ready != strings.HasPrefix(set, "python") {
			t.Errorf("%s: exit %d, ready %v, said %s, %v", set, code, ready, said, err)
		}
		got := map[string]string{}
		for name := range files {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Error(err)
			}
			got[name] = string(b)
		}
		if !maps.Equal(got, files) {
			t.Errorf("%s: the record is now %q", set, got)
		}
	}
}
