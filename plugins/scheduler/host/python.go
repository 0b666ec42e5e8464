package host

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner"
)

// sdk are the files of the Python package that a script sees: the SDK alone.
var sdk = []string{"dflash_runner/__init__.py", "dflash_runner/scheduler"}

// isolated are an interpreter's arguments where an entry has none: no variables,
// no user's packages, no byte code. In place of -I, which would hide the
// script's own directory too: that one is private, and holds what was checked.
var isolated = []string{"-E", "-s", "-B"}

// Script says whether the program is a Python script: the SDK is put beside it.
func (e Entry) Script() bool { return strings.HasSuffix(e.Program.Path, ".py") }

// Borrows says whether the program is a script that names no interpreter: it
// runs with Options.Python.
func (e Entry) Borrows() bool { return e.Script() && e.Interpreter.Path == "" }

// interpreted gives the entry with all that a script leaves out. An interpreter
// that is neither named nor pinned is the run's own, and is what it is now: its
// sum only proves that it does not change before it starts.
func (e Entry) interpreted(o Options) (Entry, error) {
	if !e.Script() {
		return e, nil
	}
	if e.Borrows() {
		if o.Python == "" {
			return e, runner.Errorf(runner.NotFound, "stage plugin %s: want an interpreter for %s, got none", e.Name, e.Program.Path).
				WithHint("name one in the plugin's interpreter")
		}
		e.Interpreter.Path = o.Python
		if e.Interpreter.SHA256 == "" {
			sum, err := Sum(o.Python)
			if err != nil {
				return e, err
			}
			e.Interpreter.SHA256 = sum
		}
	}
	if len(e.InterpreterArgs) == 0 {
		e.InterpreterArgs = isolated
	}
	return e, nil
}

// stageSDK writes the SDK that this program carries into dir, and gives its files.
func stageSDK(dir string) (all []File, err error) {
	for _, root := range sdk {
		err = fs.WalkDir(python.Package, root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := fs.ReadFile(python.Package, path)
			if err != nil {
				return err
			}
			at := filepath.Join(dir, filepath.FromSlash(path))
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			all = append(all, File{at, hex.EncodeToString(sum[:])})
			return os.WriteFile(at, b, 0o400)
		})
		if err != nil {
			return nil, runner.Errorf(runner.Unavailable, "stage plugin: lay out the SDK: %w", err)
		}
	}
	return all, nil
}
