package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// expand puts the environment's values into a file: expand FILE.
func expand(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	text, err := os.ReadFile(path)
	ts.Check(err)
	ts.Check(os.WriteFile(path, []byte(os.Expand(string(text), ts.Getenv)), 0o600))
}

// TestPythonPluginScripts runs the commands about plugins on Python scripts, with
// the workers' real Python.
func TestPythonPluginScripts(t *testing.T) {
	env := pyenvtest.Ensure(t)
	example, err := os.ReadFile("../../plugins/examples/steer-by-loss/steer_by_loss.py")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "python"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("XDG_RUNTIME_DIR", "")
			e.Setenv("PYTHON", env.Python)
			path := filepath.Join(e.WorkDir, "steer_by_loss.py")
			if err := os.WriteFile(path, example, 0o600); err != nil {
				return err
			}
			sum, err := host.Sum(path)
			e.Setenv("SUM", sum)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "changed": changed, "expand": expand},
	})
}
