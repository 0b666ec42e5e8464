// Package schedulertest is the contract's test kit for the tests of a plugin:
//
//	func TestContract(t *testing.T) { schedulertest.Run(t, build(t)) }
//
// `dflash-runner plugins test PATH` does the same without Go.
package schedulertest

import (
	"os"
	"testing"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler/contract"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
)

// Run starts the program at path, with args, as a run does, and drives it
// through every call of the contract; each is a subtest.
func Run(t *testing.T, path string, args ...string) {
	t.Helper()
	e, err := host.Pin(path, args...)
	if err != nil {
		t.Fatal(err)
	}
	RunEntry(t, e)
}

// RunEntry is Run for a plugin of more than one file, or with a configuration.
func RunEntry(t *testing.T, e host.Entry) {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	o := host.Defaults()
	o.Directory = dir
	for _, r := range contract.Check(t.Context(), e, o) {
		t.Run(r.Name, func(t *testing.T) {
			switch r.Status {
			case contract.Failed:
				t.Error(r.Detail)
			case contract.Skipped:
				t.Skip(r.Detail)
			}
			t.Log(r.Detail)
		})
	}
}
