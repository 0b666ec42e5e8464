package python_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// The tests of the Python side, in the environment that the workers use. Their
// count is pytest's closing line, printed with -v.
func TestPython(t *testing.T) {
	env := pyenvtest.Ensure(t)
	which := "not gpu"
	if testing.Short() {
		which += " and not slow"
	}
	t.Run("pytest", func(t *testing.T) {
		out := python3(t, env.Python, "-m", "pytest", "-q", "--durations=15", "-m", which)
		if !regexp.MustCompile(`(?m)^=* ?[1-9][0-9]* passed`).MatchString(out) {
			t.Errorf("no test passed:\n%s", out)
		}
		t.Logf("pytest: %s", lastLine(out))
	})
	t.Run("ruff", func(t *testing.T) { python3(t, env.Python, "-m", "ruff", "check", "--no-cache", "python") })
}

// python3 runs Python in the checkout and gives what it printed, which goes to
// the test's output as it comes with -v, and in any case after a failure.
func python3(t *testing.T, interpreter string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, args...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	var out bytes.Buffer
	done := make(chan struct{})
	go func() { // ends when w is closed below; waited for by done
		defer close(done)
		for s := bufio.NewScanner(io.TeeReader(r, &out)); s.Scan(); {
			if testing.Verbose() {
				t.Log(s.Text())
			}
		}
		_, _ = io.Copy(&out, r) // a line too long for the scanner
	}()
	err := cmd.Run()
	w.Close()
	<-done
	if err != nil {
		t.Errorf("%s: %v", strings.Join(args, " "), err)
		if !testing.Verbose() {
			t.Log(out.String())
		}
	}
	return out.String()
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// Every source file of the package is embedded: one in a folder too deep for
// the patterns would be missing from an installed binary only.
func TestPackageIsWhole(t *testing.T) {
	n := 0
	err := filepath.WalkDir("dflash_runner", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "__pycache__" {
				return fs.SkipDir
			}
			return nil
		}
		n++
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if got, err := fs.ReadFile(python.Package, filepath.ToSlash(path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not embedded as it is (%v): see the patterns in embed.go", path, err)
		}
		return nil
	})
	if err != nil || n < 10 {
		t.Errorf("walked %d files: %v", n, err)
	}
}
