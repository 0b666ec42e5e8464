package e2e

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// undisturbed is what configs/cpu-test.yaml comes to when nothing happens: the
// bits that every struck or resumed run is held against.
type undisturbed struct {
	history history
	summary admin.Summary
	export  string // model.safetensors
	target  string // the target's directory, for runs that name their own
}

var (
	referenceMu sync.Mutex // guards below
	reference   *undisturbed
)

// keep remembers a run as the reference.
func keep(t *testing.T, h *home, run string) undisturbed {
	t.Helper()
	referenceMu.Lock()
	defer referenceMu.Unlock()
	r := undisturbed{history: survivors(t, h.journal(run)), summary: summaryOf(t, h, run), export: read(t, h.path(run, "export", "model.safetensors")), target: targetOf(t, h, run)}
	if r.history.last != steps || len(r.history.commits) != steps || len(r.history.evaluations) < 4 {
		t.Fatalf("reference: want %d steps and their evaluations, got %+v", steps, r.history)
	}
	reference = &r
	return r
}

// want gives the reference, making it where no test has before.
func want(t *testing.T) undisturbed {
	t.Helper()
	referenceMu.Lock()
	have := reference
	referenceMu.Unlock()
	if have != nil {
		return *have
	}
	h := newHome(t)
	h.must(0, up("reference")...)
	return keep(t, h, "reference")
}

// sameSummary wants what a run came to, whatever befell it.
func (u undisturbed) sameSummary(t *testing.T, got admin.Summary) {
	t.Helper()
	pick := func(s admin.Summary) string {
		text, err := json.Marshal([]any{s.Steps, s.Rows, s.Samples, s.Tokens, s.LossFirst, s.LossLast, s.AcceptanceBefore, s.AcceptanceAfter,
			s.AcceptanceNonlooping, s.LoopingShare, s.Prompts, s.PromptsNonlooping, s.Lossless, s.HeldoutLoss, s.Chain, s.Exit})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if want, got := pick(u.summary), pick(got); want != got {
		t.Errorf("summary: want that of the undisturbed run\n%s, got\n%s", want, got)
	}
}
