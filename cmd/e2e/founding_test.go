package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// The founding topology, on CPU.
const (
	foundingTargets  = 5
	foundingDrafters = 3
	foundingSteps    = 6
)

// foundingSettings make a run of five targets and three drafters, short: what
// takes its time is to start eight workers, one warm-up at a time.
func foundingSettings() []string {
	return set(fmt.Sprintf("workers.targets=%d", foundingTargets), fmt.Sprintf("workers.drafters=%d", foundingDrafters),
		"training.rows_per_step=6", fmt.Sprintf("training.steps=%d", foundingSteps), "training.horizon_steps=2", "images.every_steps=2", "checkpoints.every_steps=3",
		"evaluate.prompts=2", "evaluate.new_tokens=8", "evaluate.heldout_samples=4")
}

// TestFounding: five targets and three drafters, of which one of each dies on
// the way. Everyone passes the gate alone, no step is decided before all that
// train it have proved their kernels, and every sample is settled once.
func TestFounding(t *testing.T) {
	if testing.Short() {
		return
	}
	want(t) // target and data are there
	t.Parallel()
	h := newHome(t)
	h.faulty([]string{"drafter/2:train@3:2:sigkill", "target/4:produce:2:exit"}, up("founding", foundingSettings()...)...).wait().want(t, 0, "up")
	s := summaryOf(t, h, "founding")
	checkGated(t, h, s)
	var report struct{ Committed, Skipped, Lineage uint64 }
	h.must(0, "journal", "verify", "founding", "--json").json(t, &report)
	if report.Committed != foundingSteps || report.Skipped != 0 || report.Lineage != 1 || s.Rows < 5*foundingSteps || s.Rows > 6*foundingSteps {
		t.Errorf("want %d steps of 6 rows or, at an epoch's end, less, nothing skipped or restored, got %d rows, %+v", foundingSteps, s.Rows, report)
	}
	died := []string{}
	for _, f := range s.Failures {
		died = append(died, fmt.Sprintf("%s.%d %s", f.Worker, f.Generation, f.Cause))
	}
	slices.Sort(died)
	if !slices.Equal(died, []string{"drafter/2.1 signal", "target/4.1 exit"}) {
		t.Errorf("want the two deaths that were asked for, got %v", died)
	}
	if len(s.Arenas) != foundingTargets {
		t.Errorf("want an arena of each target, got %+v", s.Arenas)
	}
	handed := uint64(0)
	for _, a := range s.Arenas {
		handed += a.HandOffs
	}
	if handed < uint64(s.Rows) {
		t.Errorf("want every row handed over, got %d of %d", handed, s.Rows)
	}
}

// checkGated: every worker passed the gate alone and has its certificate, a dead
// drafter's replacement too, and the first step came after the proofs of all
// drafters and of a target. A dead target is waited for by nobody: the run may
// be over before its replacement is proved.
func checkGated(t *testing.T, h *home, s admin.Summary) {
	t.Helper()
	if s.Gate.Width != 1 || s.Gate.MaxHolders != 1 {
		t.Errorf("want one warm-up at a time, got %+v", s.Gate)
	}
	passed := map[string]int{}
	for _, w := range s.Gate.Sequence {
		passed[w.String()]++
	}
	for _, w := range s.Workers {
		want := 1
		if w.Name.String() == "drafter/2" {
			want = 2
		}
		proved := w.Certificate != nil && w.Certificate.Attention == "sdpa" && w.Certificate.SecondPassCompiles == 0 && w.Certificate.DenseCalls == 0
		if passed[w.Name.String()] < want || !proved && w.Generations == 1 {
			t.Errorf("%s: want it through the gate %d times, with a certificate, got %d of %d lives, %+v", w.Name, want, passed[w.Name.String()], w.Generations, w.Certificate)
		}
	}
	if len(s.Workers) != foundingTargets+foundingDrafters {
		t.Errorf("want eight workers, got %+v", s.Workers)
	}
	ready := map[runner.Role]int{}
	for _, e := range h.events("founding") {
		switch {
		case e.Name == "worker ready" && e.Worker != nil:
			ready[e.Worker.Role]++
		case e.Name == "step decided":
			if ready[runner.Drafter] < foundingDrafters || ready[runner.Target] < 1 {
				t.Errorf("a step was decided when %v were ready", ready)
			}
			return
		}
	}
	t.Error("want a step decided, got none")
}
