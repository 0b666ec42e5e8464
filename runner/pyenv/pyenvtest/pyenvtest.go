// Package pyenvtest gives tests the real Python environment: the one that
// `dflash-runner up` uses, made once in the user's cache directory.
package pyenvtest

import (
	"sync"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

var (
	mu    sync.Mutex // guards below
	ready = map[string]*pyenv.Env{}
)

// Ensure gives the workers' environment. The first test on a machine that asks
// makes it, which takes minutes and a package index; its progress is logged.
// It stays locked against being made anew until the test binary ends.
func Ensure(t testing.TB) *pyenv.Env {
	t.Helper()
	return ensure(t, pyenv.Worker("", ""))
}

// EnsureCompat gives the environment of the public `dflash` package.
func EnsureCompat(t testing.TB) *pyenv.Env {
	t.Helper()
	return ensure(t, pyenv.Compat(""))
}

// Tree gives the directory that holds the embedded Python package.
func Tree(t testing.TB) string {
	t.Helper()
	dir, err := pyenv.Tree("")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func ensure(t testing.TB, s pyenv.Spec) *pyenv.Env {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if e, ok := ready[s.Name]; ok {
		return e
	}
	e, err := pyenv.Ensure(t.Context(), s, func(p pyenv.Progress) { t.Logf("python environment: %s: %s", p.Stage, p.Message) })
	if err != nil {
		t.Fatalf("%v\n%s", err, runner.HintOf(err))
	}
	ready[s.Name] = e
	return e
}
