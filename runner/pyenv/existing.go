package pyenv

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// runtimePackages are those that workers and jobs import themselves.
var runtimePackages = []string{"torch", "transformers", "tokenizers", "safetensors", "numpy", "msgspec", "grpcio", "protobuf"}

// useExisting checks an interpreter that the user named. Nothing is installed
// into it: a missing package is an error, another version a warning.
func useExisting(ctx context.Context, s Spec) (*Env, error) {
	wanted, err := ParseLock(s.Lock)
	if err != nil {
		return nil, err
	}
	path, err := exec.LookPath(s.Interpreter)
	if err != nil {
		return nil, runner.Errorf(runner.NotFound, "use interpreter %s: %w", s.Interpreter, err).
			WithHint("python.interpreter in the configuration names the Python to use; leave it out to have an environment made")
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, runner.Errorf(runner.Invalid, "use interpreter %s: %w", s.Interpreter, err)
	}
	i, err := ask(ctx, path, childEnviron(os.Environ()), withPackages)
	if err != nil {
		return nil, runner.Errorf(runner.Invalid, "use interpreter %s: %w", s.Interpreter, err).
			WithHint("name a Python 3.%d to 3.%d itself, such as /usr/bin/python3, or leave python.interpreter out to have an environment made", minMinor, maxMinor)
	}
	if p := i.unfit(); p != "" {
		return nil, runner.Errorf(runner.Invalid, "use interpreter %s: want Python 3.%d to 3.%d, it %s", s.Interpreter, minMinor, maxMinor, p)
	}
	have := map[string]string{}
	for name, version := range i.Packages {
		have[normalise(name)] = version
	}
	e := &Env{Dir: i.Prefix, Python: path, Version: i.version(), Fingerprint: fingerprintOf(i, have), Packages: have}
	var missing []string
	for _, r := range wanted {
		if !slices.Contains(runtimePackages, r.Name) {
			continue
		}
		switch v, ok := have[r.Name]; {
		case !ok:
			if n := len(missing) - 1; n >= 0 && strings.HasPrefix(missing[n], r.Name+" ") {
				missing[n] += " or " + r.Version // a lock names one for each range of Pythons
				continue
			}
			missing = append(missing, r.Name+" "+r.Version)
		case v != r.Version && !r.Marker:
			e.Warnings = append(e.Warnings, fmt.Sprintf("%s has %s %s, tested with %s", s.Interpreter, r.Name, v, r.Version))
		}
	}
	if len(missing) > 0 {
		return nil, runner.Errorf(runner.NotFound, "use interpreter %s: missing %s", s.Interpreter, strings.Join(missing, ", ")).
			WithHint("install them there, or leave python.interpreter out to have an environment made")
	}
	return e, nil
}

// fingerprintOf names an existing environment's contents.
func fingerprintOf(i interpreter, have map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "existing\n%s\n%s\n", i.version(), i.Machine)
	for _, name := range slices.Sorted(maps.Keys(have)) {
		fmt.Fprintf(&b, "%s %s\n", name, have[name])
	}
	return sum([]byte(b.String()))
}
