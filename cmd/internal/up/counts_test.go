package up

import (
	"os"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/config"
)

// TestCountsAreSettled: counts that are left to the scheduler are chosen before
// anything is started, and written down; a resume takes them, whatever it says.
func TestCountsAreSettled(t *testing.T) {
	smi(t, 4)
	u := onGPU(t, "workers.targets=auto", "workers.drafters=auto", "training.rows_per_step=4", "costs.target_row=30ms", "costs.drafter_row=30ms")
	if err := u.preflight(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := u.config.Workers
	if w.Targets < 1 || w.Drafters < 1 || 4%w.Drafters != 0 || len(u.plan.Workers) != int(w.Targets+w.Drafters) || w.Colocate == "auto" {
		t.Fatalf("got %+v with %d workers", w, len(u.plan.Workers))
	}
	text, err := os.ReadFile(u.dir.join("config.yaml"))
	if err != nil || strings.Contains(string(text), ": auto\n  drafters") || !strings.Contains(string(text), "drafters: "+w.Drafters.String()+"\n") {
		t.Errorf("config.yaml: %v\n%s", err, text)
	}
	if notes := strings.Join(u.plan.Notes, "\n"); !strings.Contains(notes, "chosen: ") || !strings.Contains(notes, "the configuration's costs: target_row, drafter_row") {
		t.Errorf("notes: %s", notes)
	}
	if err := os.MkdirAll(u.dir.join("journal"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(u.dir.join("journal", "00000001.journal"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !hasJournal(u.dir.path) {
		t.Fatal("want a run that was begun")
	}
	again := *u.config
	again.Workers.Targets, again.Workers.Drafters, again.Workers.Colocate = config.Auto, config.Auto, "auto"
	if err := absolute(&again); err != nil {
		t.Fatal(err)
	}
	if err := fits(u.dir, &again); err != nil {
		t.Fatal(err)
	}
	if again.Workers.Targets != w.Targets || again.Workers.Drafters != w.Drafters || again.Workers.Colocate != w.Colocate {
		t.Errorf("resumed with %+v, began with %+v", again.Workers, w)
	}
}
