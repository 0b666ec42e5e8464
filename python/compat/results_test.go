package compat_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// ours is what export_drafters.py writes of one directory.
type ours struct {
	Refused  string
	Kind     string
	Tokens   [][]int
	Accepted [][]int // by prompt and round
	Gaps     []float64
}

// theirs is what decode_public.py writes of one directory.
type theirs struct {
	Error          string
	Loaded         int
	Strange        []string
	Dtype          string
	BlockSize      int   `json:"block_size"`
	TargetLayerIDs []int `json:"target_layer_ids"`
	Tokens         [][]int
	Accepted       [][]int
}

type ownResults struct {
	Versions      map[string]string
	Losses        []float64
	Looping       float64
	Plain         [][]int
	Drafters      map[string]ours
	TrainSeconds  float64 `json:"train_seconds"`
	DecodeSeconds float64 `json:"decode_seconds"`
}

type publicResults struct {
	Versions map[string]string
	Plain    [][]int
	Drafters map[string]theirs
	Seconds  float64
}

// results runs both sides, each in its own environment.
func results(t *testing.T) (ownResults, publicResults) {
	t.Helper()
	dir := t.TempDir()
	worker, compat := pyenvtest.Ensure(t), pyenvtest.EnsureCompat(t)
	path := strings.Join([]string{absolute(t, ".."), absolute(t, "../tests")}, string(os.PathListSeparator))
	python3(t, []string{"PYTHONPATH=" + path}, worker.Python, "-B", "-W", "error", "export_drafters.py", dir)
	python3(t, nil, compat.Python, "-I", "-B", "decode_public.py", dir) // -I: none of our modules
	var own ownResults
	var public publicResults
	readJSON(t, filepath.Join(dir, "own.json"), &own)
	readJSON(t, filepath.Join(dir, "public.json"), &public)
	t.Logf("ours: %v; trained in %.0f s, decoded in %.0f s", own.Versions, own.TrainSeconds, own.DecodeSeconds)
	t.Logf("theirs: %v; decoded in %.0f s", public.Versions, public.Seconds)
	for name, d := range public.Drafters {
		t.Logf("%-22s acceptance: ours %.4f, theirs %.4f", name, mean(own.Drafters[name].Accepted), mean(d.Accepted))
	}
	return own, public
}

func python3(t *testing.T, env []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args[1:], " "), err, out)
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
