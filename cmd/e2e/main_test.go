package e2e

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// built is what all tests share: the binary, the configuration, and a cache of
// their own, so that targets and data are made here and nobody's are touched.
// Only the Python environments are those of the user's cache. E2E_CACHE names a
// cache to keep from one run of the tests to the next.
var built struct {
	dir    string // removed at the end
	binary string
	config string
	cache  string // XDG_CACHE_HOME
}

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "plugin" {
		becomePlugin(os.Args[2:])
	}
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if built.dir, err = os.MkdirTemp("", "e2e-"); err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(built.dir) }()
	if err := build(); err != nil {
		return 1, err
	}
	code = m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		return 1, err
	}
	return code, nil
}

// build makes the binary and what every run needs.
func build() error {
	built.binary = filepath.Join(built.dir, "dflash-runner")
	built.config = filepath.Join(built.dir, "cpu-test.yaml")
	built.cache = filepath.Join(built.dir, "cache")
	if dir := os.Getenv("E2E_CACHE"); dir != "" {
		built.cache = dir
	}
	args := []string{"build", "-o", built.binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "../dflash-runner")...).CombinedOutput(); err != nil {
		return fmt.Errorf("build binary: %w\n%s", err, out)
	}
	if err := os.WriteFile(built.config, configs.CPUTest(), 0o600); err != nil {
		return err
	}
	users, err := pyenv.DefaultCacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(users, "python"), 0o755); err != nil {
		return err
	}
	ours := filepath.Join(built.cache, "dflash-runner")
	if err := os.MkdirAll(ours, 0o755); err != nil {
		return err
	}
	err = os.Symlink(filepath.Join(users, "python"), filepath.Join(ours, "python"))
	if errors.Is(err, fs.ErrExist) { // E2E_CACHE, again
		return nil
	}
	return err
}
