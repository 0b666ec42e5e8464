package core

import (
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// A commit that waits for the image of the step before: so long and no longer
// is put down, and the step's event says it.
func TestStalls(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 2, imageEvery: 1, budget: 9}
	x := stage(t, s, func(w *world) bool { return w.core.decided == 1 && holding(1, is[runner.Image])(w) })
	x.settle(1, is[runner.Image]) // everything but that answer: the next step's votes are there
	if got := x.core.keptBy(); got != holdImage {
		t.Fatalf("kept by %d, want by the image", got)
	}
	before := x.core.View().Stalls
	x.pass(3 * time.Second)
	x.until(func(w *world) bool { return w.core.decided == 2 })
	got := x.core.View().Stalls
	if got.Image != before.Image+3*time.Second || got.Longest != 3*time.Second || got.Commits != 1 || got.Training < 3*time.Second || got.Journal != 0 {
		t.Errorf("stalls %+v, before the wait %+v", got, before)
	}
	waits := map[runner.Step]float64{}
	for _, a := range x.acts {
		if e, ok := a.(Emit); ok && e.Event.Name == "step decided" {
			waits[e.Event.Step] = e.Event.Figures["image_wait_ms"]
		}
	}
	if waits[1] != 0 || waits[2] != 3000 {
		t.Errorf("the events say that commits waited for %v ms", waits)
	}
}

// Time in which votes are missing, or the journal is waited for, is no image's.
func TestStallsOfOthers(t *testing.T) {
	var st Stalls
	for _, on := range []hold{holdNone, holdJournal, holdJournal, holdImage} {
		st.spend(on, time.Second)
	}
	if waited := st.decided(); waited != time.Second || st.Training != 4*time.Second || st.Journal != 2*time.Second || st.Image != time.Second {
		t.Errorf("waited %v: %+v", waited, st)
	}
	if waited := st.decided(); waited != 0 || st.Commits != 1 {
		t.Errorf("the next step waited %v: %+v", waited, st)
	}
}
