package view

import (
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// TestIncident: one report a cause, with those that said the same and what
// came after it.
func TestIncident(t *testing.T) {
	at := time.Unix(1005, 0)
	d := func(w runner.Worker, message string, incident uint64, forced bool) runner.Failure {
		return runner.Failure{Worker: w, Generation: 1, Role: w.Role, Device: "cpu", Cause: runner.CauseCUDA, Message: message, Hint: "look", At: at,
			Incident: incident, ForcedBySelf: forced, Doing: "train step 3 micro 0 row 7", Kernel: []string{"NVRM: Xid"}}
	}
	drafter0 := runner.Worker{Role: runner.Drafter}
	own, after := d(drafter1, "CUDA error", 4, false), d(drafter0, "NCCL error", 4, true)
	after.Follows = "drafter/1.1"
	lines := strings.Join(Incident(runner.Incidents([]runner.Failure{after, own})[0]), "\n")
	for _, want := range []string{"drafter/1.1 (drafter, cpu) died at ", "  CUDA error\n", "  died at: train step 3 micro 0 row 7", "  kernel log:\n    NVRM: Xid",
		"  after it, and maybe because of it:\n    drafter/0.1 (drafter, cpu)", "      NCCL error", "      after the death of drafter/1.1, which it may come from"} {
		if !strings.Contains(lines, want) {
			t.Errorf("want %q in\n%s", want, lines)
		}
	}
	same := Incident(runner.Incidents([]runner.Failure{d(drafter1, "no file", 5, false), d(drafter0, "no file", 6, false)})[0])
	if same[len(same)-1] != "  the same message: drafter/0.1" {
		t.Errorf("got %q", same)
	}
	next := admin.Status{Failures: []runner.Failure{after, own}}
	if got := failureLines(admin.Status{}, next); len(got) != 2 || got[0] != "failure: drafter/1.1: cuda: CUDA error (after it drafter/0.1)" {
		t.Errorf("both at once: got %q", got)
	}
	if got := failureLines(admin.Status{Failures: []runner.Failure{own}}, next); len(got) != 2 || got[0] != "failure: drafter/0.1: cuda: NCCL error (after drafter/1.1)" {
		t.Errorf("one after another: got %q", got)
	}
}
