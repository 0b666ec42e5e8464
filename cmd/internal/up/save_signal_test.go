package up

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// TestSaveSignal: SIGUSR1 makes a checkpoint that no interval asks for, and the
// run goes on to its end.
func TestSaveSignal(t *testing.T) {
	b := newBench(t)
	var saved runner.Step
	f, u := b.run("run", false, func(u *up) {
		if _, ok := atStep(u, 3); !ok {
			return
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Error(err)
		}
		for saved == 0 && !u.isOver() {
			if c := u.Status().Checkpoint; c != nil {
				saved = c.Step
			}
			time.Sleep(time.Millisecond) // between looks
		}
	}, "checkpoints.every_steps=1000", "checkpoints.keep_last=5", "failure.deadlines.stop=7s")
	b.check(f, u)
	if saved < 4 || saved >= lastStep {
		t.Fatalf("saved step %d", saved)
	}
	if _, err := image.Verify(u.dir.join("checkpoints", image.Name(saved))); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(u.dir.join("events.jsonl"))
	if err != nil || bytes.Count(text, []byte(`"event":"checkpoint requested"`)) != 1 {
		t.Errorf("want one event of the request: %v", err)
	}
	if u.stoppedBy() != "" {
		t.Errorf("the run was asked to end: %s", u.stoppedBy())
	}
}

// TestSaveSignalBeforeTraining: there is nothing to save, and people are told;
// the run is not ended by it.
func TestSaveSignalBeforeTraining(t *testing.T) {
	b := newBench(t)
	f, u := b.run("run", false, func(u *up) { u.checkpoint() })
	b.check(f, u)
	text, err := os.ReadFile(u.dir.join("events.jsonl"))
	if err != nil || !bytes.Contains(text, []byte(`"event":"checkpoint `)) {
		t.Errorf("no event says what came of it: %v", err)
	}
}
