package drive_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// late is what a delay or a pause takes: within every deadline.
const late = 60 * time.Millisecond

// register lets a launch or a warm-up be struck while f runs.
func (t *term) register(id runner.Life, f func(strike <-chan kind) error) error {
	c := make(chan kind, 1)
	t.arms.Lock()
	t.starting[id] = c
	t.arms.Unlock()
	defer func() {
		t.arms.Lock()
		delete(t.starting, id)
		t.arms.Unlock()
	}()
	return f(c)
}

// launching is a launch: it takes a while, and can be struck.
func (t *term) launching(ctx context.Context, id runner.Life) error {
	died := func(c runner.Cause, m string) error {
		return &drive.Died{Failure: runner.Failure{Worker: id.Worker, Generation: id.Generation, Role: id.Worker.Role, Cause: c, Message: m}}
	}
	err := t.register(id, func(strike <-chan kind) error {
		for took := t.took("launch", id.String()); ; took = late {
			select {
			case <-time.After(took):
				return nil
			case <-ctx.Done():
				return died(runner.CauseKilled, "given up")
			case k := <-strike:
				switch k {
				case kKill:
					return died(runner.CauseSignal, "killed by SIGKILL")
				case kRefuse:
					return runner.Errorf(runner.Unavailable, "no such interpreter")
				case kStop:
					<-ctx.Done()
					return died(runner.CauseKilled, "given up")
				}
			}
		}
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil && t.dead {
		return errDead
	}
	return err
}

// warming is a warm-up, likewise.
func (t *term) warming(ctx context.Context, p *drivetest.Process) error {
	return t.register(p.Life(), func(strike <-chan kind) error {
		for took := t.took("warm up", p.Life().String()); ; took = late {
			select {
			case <-time.After(took):
				return nil
			case <-p.Gone():
				return runner.Errorf(runner.Unavailable, "warm up: the process is gone")
			case <-ctx.Done():
				return context.Cause(ctx)
			case k := <-strike:
				if k == kRefuse {
					return runner.Errorf(runner.Invalid, "dense calls: want 0, got 3")
				}
			}
		}
	})
}

// took draws what something takes, once more.
func (t *term) took(what, of string) time.Duration {
	t.arms.Lock()
	t.counts[what+of]++
	n := t.counts[what+of]
	t.arms.Unlock()
	d := 200*time.Microsecond + upTo(t.random(what, of, n), 8*time.Millisecond)
	if of := orderPhases[what]; of[0] == "warming" {
		t.w.s.stretch(&d, "waiting", "") // for others to wait
		t.w.s.stretch(&d, "warming", "")
	} else if of != [2]string{} {
		t.w.s.stretch(&d, of[0], of[1])
	}
	return d
}

func (t *term) wait(p *drivetest.Process, o runner.Order) time.Duration {
	return t.took(runner.OrderType(o), p.Life().String())
}

// fault gives the fault that was armed for a life, once.
func (t *term) fault(p *drivetest.Process, o runner.Order) drivetest.Fault {
	if f := t.w.on.order; f != nil && f(t, p.Life(), o) {
		return drivetest.Die
	}
	t.arms.Lock()
	f := t.armed[p.Life()]
	delete(t.armed, p.Life())
	t.arms.Unlock()
	if f == delayed {
		time.Sleep(late) // of the bubble's time
		return ""
	}
	return f
}

// delayed is a fault of the order's time alone.
const delayed drivetest.Fault = "delayed"

// strikes looks at the machines again and again, and strikes in states that
// were not struck so in this history.
func (t *term) strikes() {
	r := t.random("strikes")
	for quiet := 0; ; quiet-- {
		select {
		case <-t.over:
			return
		case <-time.After(300*time.Microsecond + upTo(r, time.Millisecond)):
		}
		v, ok := t.loop.View(context.Background())
		if !ok || v.Finished {
			return
		}
		if t.w.struck != nil {
			t.w.struck.see(v.View)
		}
		if t.w.left == 0 || quiet > 0 || t.number > 12 {
			continue
		}
		if k, x := t.choose(r, v.View); x != nil {
			t.w.left--
			if t.w.s.aim == nil {
				quiet = r.IntN(30)
			}
			t.strike(k, *x, v.View)
		}
	}
}

// choose draws a strike that is due now, or none.
func (t *term) choose(r *rand.Rand, v core.View) (kind, *core.WorkerView) {
	x := &v.Workers[r.IntN(len(v.Workers))]
	if a := t.w.s.aim; a != nil {
		for i := range v.Workers {
			if cellOf(v.Workers[i].State, v.Phase, a.kind) == *a && t.w.here.at(*a) < 3 {
				return a.kind, &v.Workers[i]
			}
		}
		return t.pave(r, v)
	}
	kinds := [2]kind{kind(t.w.s.random("kind").IntN(int(numKinds))), kind(t.w.s.random("other kind").IntN(int(numKinds)))}
	if k := kinds[r.IntN(2)]; t.due(r.Float64(), k, *x, v.Phase) {
		return k, x
	}
	return 0, nil
}

// pave gives a strike that leads towards the cell that the history is about.
func (t *term) pave(r *rand.Rand, v core.View) (kind, *core.WorkerView) {
	state, phase := stateNames[t.w.s.aim.state], phaseNames[t.w.s.aim.phase]
	pick := func(role runner.Role, states ...string) *core.WorkerView {
		for i := range v.Workers {
			if x := &v.Workers[(i+int(v.Step))%len(v.Workers)]; x.Worker.Role == role && slices.Contains(states, x.State) {
				return x
			}
		}
		return nil
	}
	out := 0 // targets that are not ready
	in := false
	for _, x := range v.Workers {
		in = in || x.State == state
		if x.Worker.Role == runner.Target && x.State != "ready" {
			out++
		}
	}
	ends := state == "draining" || state == "gone"
	switch {
	case r.Float64() > 0.1 || v.Step == 0:
	case ends && !v.Ending && v.Step >= 2 && v.Phase != "apart":
		return kTerm, pick(runner.Target, "ready")
	case ends && v.Ending && phase == "aborting" && v.Phase == "open":
		return kKill, pick(runner.Drafter, "draining")
	case !ends && in && (phase == "aborting" || phase == "joining") && v.Phase == "open":
		return kKill, pick(runner.Drafter, "ready")
	case !ends && (out == 0 || out == 1 && state == "waiting") && (v.Phase == phase || v.Phase == "open"):
		if state == "lost" {
			return kLane, pick(runner.Target, "ready")
		}
		return kKill, pick(runner.Target, "ready")
	}
	return 0, nil
}

// due reports whether a cell is to be struck now: once a history, and rarely
// where the run is most of the time.
func (t *term) due(chance float64, k kind, x core.WorkerView, phase string) bool {
	c := cellOf(x.State, phase, k)
	if c.why() != "" || t.w.here.at(c) > 0 {
		return false
	}
	switch {
	case phase != "open" && phase != "apart":
		return chance < 0.6
	case x.State == "ready" || x.State == "gone":
		return chance < 0.02
	}
	return chance < 0.2
}

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
