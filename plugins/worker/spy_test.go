package worker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestSpy: what stands beside the interpreter is asked, in bounds, and what it
// says is told, good or bad.
func TestSpy(t *testing.T) {
	for name, c := range map[string]struct{ script, want, problem string }{
		"stacks":  {"echo \"$*\"; echo 'Thread 7 (idle): \"MainThread\"'; echo '    wait (faults.py:161)'", "dump --nonblocking --pid 77|Thread 7 (idle): \"MainThread\"|    wait (faults.py:161)", ""},
		"refused": {"echo 'Permission\nDenied' >&2; exit 1", "", "py-spy: exit status 1: Permission Denied"},
		"a flood": {"head -c 3000000 /dev/zero | tr '\\0' 'x'", strings.Repeat("x", 10), ""},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "py-spy"), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		lines, err := spy(t.Context(), filepath.Join(dir, "python"), 77)
		got := strings.Join(lines, "|")
		if c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) || c.problem == "" && (err != nil || !strings.HasPrefix(got, c.want) || len(got) > 2*tracebackWidth) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := spy(t.Context(), "/nowhere/python", 77); runner.KindOf(err) != runner.NotFound {
		t.Errorf("not installed: got %v", err)
	}
}
