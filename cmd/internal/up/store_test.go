package up

import (
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestNewestCheckpoint: the newest is of the newest lineage, not of the highest
// step: a restore to an earlier step leaves undone ones on the disk for a while.
// One that is gone or damaged is none.
func TestNewestCheckpoint(t *testing.T) {
	var s store
	is := func(name, when string) {
		t.Helper()
		got := ""
		if p := s.last(); p != nil {
			got = p.name
		}
		if got != name {
			t.Errorf("%s: got %q, want %q", when, got, name)
		}
	}
	publish := func(name string, step runner.Step, lineage runner.Lineage) {
		s.note(published{name: name, step: step, lineage: lineage})
	}
	is("", "none")
	publish("step-16", 16, 1)
	publish("step-58", 58, 1)
	publish("step-32", 32, 1)
	is("step-58", "the highest step of one lineage")
	publish("step-16", 16, 2)
	is("step-16", "published anew after a restore")
	publish("step-20", 20, 2)
	publish("step-16", 16, 2) // as the best one
	is("step-20", "an older one named the best")
	s.forget("step-20")
	is("step-16", "damaged")
	s.forget("step-16")
	is("step-58", "what is left")
	s.forget("step-58")
	s.forget("step-32")
	is("", "all gone")
}
