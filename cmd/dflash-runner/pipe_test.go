package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNobodyReads: an up whose stdout and stderr nobody reads any more goes on to
// its own end, and the run's events say that its output was lost.
func TestNobodyReads(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "r"), 0o700); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close() // nobody reads
	cmd := exec.Command(os.Args[0], "up", "--plain", "--name", "x", "--set", "workers.device=cuda", "--set", "drafter.attention=sdpa")
	cmd.Args[0] = filepath.Join(dir, "dflash-runner") // testscript tells by the name what the binary is
	if err := os.Symlink(os.Args[0], cmd.Args[0]); err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Dir, cmd.Stdout, cmd.Stderr = cmd.Args[0], dir, w, w
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "XDG_RUNTIME_DIR="+filepath.Join(dir, "r"), "PATH="+dir)
	err = cmd.Run()
	_ = w.Close()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("want exit 3, the run's own, got %v", err)
	}
	events, err := os.ReadFile(filepath.Join(dir, "runs", "x", "events.jsonl"))
	if err != nil || !strings.Contains(string(events), "output lost") || !strings.Contains(string(events), "broken pipe") {
		t.Errorf("want the lost output noted, got %s, %v", events, err)
	}
}
