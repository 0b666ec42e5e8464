package drive_test

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// strike does it.
func (t *term) strike(k kind, x core.WorkerView, v core.View) {
	id := runner.Life{Worker: x.Worker, Generation: x.Generation}
	t.w.note("%v: %v is %s (%s), the drafters are %s, step %d", k, id, x.State, x.Order, v.Phase, v.Step)
	count := func(state string) {
		c := cellOf(state, v.Phase, k)
		t.w.here.add(c)
		t.w.struck.add(c)
	}
	if k < firstOfAll {
		count(x.State)
		t.strikeWorker(k, id, x.State)
		return
	}
	seen := map[string]bool{}
	for _, y := range v.Workers { // it befalls all
		if !seen[y.State] {
			seen[y.State] = true
			count(y.State)
		}
	}
	t.strikeRun(k)
}

// strikeWorker is a fault of one worker.
func (t *term) strikeWorker(k kind, id runner.Life, state string) {
	if state == "launching" || state == "warming" && (k == kDelay || k == kRefuse) {
		t.arms.Lock()
		c := t.starting[id]
		t.arms.Unlock()
		select {
		case c <- k: // nil where it has just ended
		default:
		}
		return
	}
	for _, p := range t.launcher.All() {
		if p.Life() == id {
			t.strikeProcess(k, p)
		}
	}
}

func (t *term) strikeProcess(k kind, p *drivetest.Process) {
	r := t.random("how", p.Life())
	arm := func(f drivetest.Fault) {
		t.arms.Lock()
		defer t.arms.Unlock()
		t.armed[p.Life()] = f
	}
	switch k {
	case kKill:
		p.Die()
	case kStop:
		p.Freeze()
	case kPause:
		p.Freeze()
		time.AfterFunc(late, p.Thaw)
	case kDelay:
		arm(delayed)
	case kLane:
		[]func(){p.BreakLane, p.DropLane, p.Flood, func() { p.Say(1<<40, runner.Pulled{Row: 1}) }}[r.IntN(4)]()
	case kLie:
		arm([]drivetest.Fault{drivetest.Lie, drivetest.Lie, drivetest.Wrong}[r.IntN(3)])
	case kRefuse:
		arm([]drivetest.Fault{drivetest.Refuse, drivetest.Broken}[r.IntN(2)])
	}
}

// strikeRun is a fault of the supervisor or of what it stands on.
func (t *term) strikeRun(k kind) {
	r := t.random("how", k)
	switch k {
	case kSupervisor:
		t.kill()
	case kTerm:
		t.excuse[runner.ExitStopped] = "it was asked to stop"
		t.loop.Stop(false, "signal terminated")
	case kQuick:
		t.excuse[runner.ExitStopped], t.excuse[runner.ExitFailed] = "it was asked to stop at once", "it was asked to stop at once"
		t.loop.Stop(true, "down --quick")
	case kJournal:
		t.excuse[runner.ExitFailed] = "the journal failed"
		t.set(func() { t.broken = []string{"append", "sync"}[r.IntN(2)] })
	case kDisk:
		t.excuse[runner.ExitFailed] = "the disk was full"
		t.set(func() { t.room = r.Int64N(6000) })
	case kMemory:
		t.excuse[runner.ExitFailed] = "there was no memory"
		t.set(func() { t.refuse = true })
	case kScheduler:
		t.set(func() { t.schedule = []string{"late", "wrong", "absent"}[r.IntN(3)] })
	}
}

func (t *term) set(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}
