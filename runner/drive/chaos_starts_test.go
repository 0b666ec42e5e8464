package drive_test

import (
	"context"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
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

// saving is what an image takes beside the steps that follow its copy: often
// more than one of them.
func (t *term) saving(p *drivetest.Process, o runner.Image) time.Duration {
	if f := t.w.on.saving; f != nil {
		f(t, p.Life(), o)
	}
	return 4 * t.took("saving", p.Life().String())
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
