package pyenv

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/leash"
)

// The Python versions that the locks were made for: 3.minMinor to 3.maxMinor.
const (
	minMinor = 11
	maxMinor = 14
)

// queryDeadline bounds the question to an interpreter: it imports next to
// nothing, but a cold disk or a busy machine can be slow.
const queryDeadline = 30 * time.Second

// interpreter is what a Python says of itself.
type interpreter struct {
	Path       string // as it was asked
	Executable string `json:"executable"`
	Prefix     string `json:"prefix"`
	Version    [3]int `json:"version"`
	Name       string `json:"name"`
	Machine    string `json:"machine"`
	Bits       int    `json:"bits"`
	Threaded   bool   `json:"free_threaded"`
	Venv       bool   `json:"venv"`
	Ensurepip  bool   `json:"ensurepip"`
	// Installed packages, only where asked for: normalised name to version.
	Packages map[string]string `json:"packages"`
}

const question = `import importlib.util as u, json, platform, struct, sys, sysconfig
print(json.dumps({"executable": sys.executable, "prefix": sys.prefix, "version": sys.version_info[:3], "name": sys.implementation.name,
"machine": platform.machine(), "bits": 8 * struct.calcsize("P"), "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
"venv": u.find_spec("venv") is not None, "ensurepip": u.find_spec("ensurepip") is not None,
"packages": %s}))`

const (
	withoutPackages = `{}`
	withPackages    = `{d.metadata["Name"]: d.version for d in __import__("importlib.metadata").metadata.distributions() if d.metadata["Name"]}`
)

// ask runs an interpreter with a question, under a deadline.
func ask(ctx context.Context, path string, env []string, packages string) (interpreter, error) {
	i := interpreter{Path: path}
	ctx, cancel := context.WithTimeoutCause(ctx, queryDeadline, fmt.Errorf("no answer in %s", queryDeadline))
	defer cancel()
	// One line may be long here: packages are many. So it is read whole.
	var out strings.Builder
	cmd := exec.CommandContext(ctx, path, "-I", "-c", fmt.Sprintf(question, packages))
	cmd.Env, cmd.WaitDelay = env, time.Second
	cmd.Stdout = &limitedWriter{w: &out, left: 4 << 20}
	if err := leash.Run(cmd, func() {}); err != nil {
		if ctx.Err() != nil {
			return i, context.Cause(ctx)
		}
		return i, fmt.Errorf("does not run: %s", exitText(err))
	}
	if err := json.Unmarshal([]byte(out.String()), &i); err != nil {
		return i, fmt.Errorf("does not answer like Python: %.60q", out.String())
	}
	return i, nil
}

// limitedWriter refuses more than its bound.
type limitedWriter struct {
	w    *strings.Builder
	left int
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	if len(b) > l.left {
		return 0, fmt.Errorf("more output than expected")
	}
	l.left -= len(b)
	return l.w.Write(b)
}

// version gives "3.11.7".
func (i interpreter) version() string {
	return fmt.Sprintf("%d.%d.%d", i.Version[0], i.Version[1], i.Version[2])
}

// unfit says why packages cannot be installed for i, or "".
func (i interpreter) unfit() string {
	switch {
	case i.Version[0] != 3 || i.Version[1] < minMinor:
		return fmt.Sprintf("is %s, too old", i.version())
	case i.Version[1] > maxMinor:
		return fmt.Sprintf("is %s, newer than the packages support", i.version())
	case i.Name != "cpython":
		return fmt.Sprintf("is %s, want cpython", i.Name)
	case i.Threaded:
		return fmt.Sprintf("is %s without the GIL, which the packages do not support", i.version())
	case i.Bits != 64:
		return fmt.Sprintf("is a %d-bit build", i.Bits)
	}
	return ""
}

// lacks says which part of the standard library is missing for making a venv.
func (i interpreter) lacks() string {
	switch {
	case !i.Venv:
		return "lacks the venv module"
	case !i.Ensurepip:
		return "lacks the ensurepip module"
	}
	return ""
}

// findPython looks for an interpreter on the path: python3 first, then the
// newest supported one by its full name. It asks each until one fits.
func findPython(ctx context.Context, path string, env []string) (interpreter, error) {
	names := []string{"python3"}
	for m := maxMinor; m >= minMinor; m-- {
		names = append(names, fmt.Sprintf("python3.%d", m))
	}
	var found []string
	seen, lacking := map[string]bool{}, ""
	for _, name := range append(names, "python") {
		for _, dir := range filepath.SplitList(path) {
			p := filepath.Join(dir, name)
			if _, err := exec.LookPath(p); err != nil || !filepath.IsAbs(p) || seen[p] {
				continue
			}
			seen[p] = true
			i, err := ask(ctx, p, env, withoutPackages)
			if ctx.Err() != nil {
				return i, runner.Errorf(runner.Canceled, "find python: %w", context.Cause(ctx))
			}
			problem := ""
			switch {
			case err != nil:
				problem = err.Error()
			case i.unfit() != "":
				problem = i.unfit()
			case i.lacks() != "":
				problem = i.lacks()
				lacking = fmt.Sprintf("3.%d", i.Version[1])
			default:
				return i, nil
			}
			found = append(found, p+" "+problem)
		}
	}
	return interpreter{}, noPython(found, lacking)
}

// noPython is the error when nothing fits.
func noPython(found []string, lacking string) error {
	what := "no python on the path"
	if len(found) > 0 {
		what = strings.Join(found, "; ")
	}
	e := runner.Errorf(runner.NotFound, "find python: want Python 3.%d to 3.%d with venv and ensurepip, got %s", minMinor, maxMinor, what)
	if lacking != "" {
		return e.WithHint("install the missing part (on Debian and Ubuntu: apt install python%s-venv), or name another Python in the configuration (python.interpreter)", lacking)
	}
	return e.WithHint("install Python 3.%d or newer (on Debian and Ubuntu: apt install python3 python3-venv), or name one in the configuration (python.interpreter)", minMinor)
}
