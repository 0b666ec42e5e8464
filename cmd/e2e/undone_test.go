package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// imageEvery is images.every_steps of configs/cpu-test.yaml.
const imageEvery = 4

// undone is what the loss of all drafters at once cost a run, by its events.
type undone struct {
	steps   int           // decided, and trained again
	settled time.Duration // from when the slowest drafter was ready to the next decision
	whole   time.Duration // from the first report of a death to that decision
}

// undoneBy reads what each restore cost: all drafters have died before it, and
// are started again.
func undoneBy(t *testing.T, events []runner.Event) (all []undone) {
	t.Helper()
	for i, e := range events {
		if e.Name != "restored" {
			continue
		}
		u, died, decided := undone{}, time.Time{}, runner.Step(0)
		for _, before := range events[:i] {
			switch {
			case before.Name == "step decided":
				decided, died = before.Step, time.Time{}
			case before.Name == "worker died" && before.Worker.Role == runner.Drafter && died.IsZero():
				died = before.At
			}
		}
		u.steps = int(decided - e.Step)
		next := slices.IndexFunc(events[i:], func(e runner.Event) bool { return e.Name == "step decided" })
		if next < 0 {
			t.Fatalf("restored to step %d, and nothing was decided after it", e.Step)
		}
		ready := e.At
		for _, after := range events[i : i+next] {
			if after.Name == "worker ready" && after.Worker.Role == runner.Drafter {
				ready = after.At
			}
		}
		u.settled, u.whole = events[i+next].At.Sub(ready), events[i+next].At.Sub(died)
		all = append(all, u)
	}
	return all
}

// checkCosts: the one death of all drafters undid no more steps than there are
// between two images, and every other death no decided step at all: it cost each
// survivor the step that was open at the most (runner/drive counts its micro-steps).
func checkCosts(t *testing.T, events []runner.Event, records []record) {
	t.Helper()
	all := undoneBy(t, events)
	if len(all) != 1 || all[0].steps < 1 || all[0].steps > imageEvery {
		t.Fatalf("want one restore that undoes 1 to %d steps, got %+v", imageEvery, all)
	}
	t.Logf("all drafters killed at once: %d steps trained again; the next was settled %.2f s after the slowest was ready, %.2f s after the first report",
		all[0].steps, all[0].settled.Seconds(), all[0].whole.Seconds())
	if n := count(records, "commit"); n != steps+all[0].steps {
		t.Errorf("want %d decisions and those %d again, got %d", steps, all[0].steps, n)
	}
}
