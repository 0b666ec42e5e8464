package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// TestBenchScripts runs the benches that compute, on a CPU at tiny shapes: the
// way that a GPU takes, with the workers' real Python.
func TestBenchScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Python several times")
	}
	env := pyenvtest.Ensure(t)
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "bench"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("CUDA_VISIBLE_DEVICES", "")
			e.Setenv("PYTHON", env.Python)
			sockets, err := os.MkdirTemp("", "r") // a short path
			e.Setenv("XDG_RUNTIME_DIR", sockets)
			e.Defer(func() { _ = os.RemoveAll(sockets) })
			return err
		},
		Condition: func(cond string) (bool, error) {
			if cond != "sdk" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			_, err := os.Stat(filepath.Join("..", "..", "python", "dflash_runner", "scheduler", "serving.py"))
			return err == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}
