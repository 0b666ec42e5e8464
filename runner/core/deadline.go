package core

import (
	"fmt"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// overdue calls f for everything that has a deadline, with what happens then.
func (c *Core) deadlines(f func(at time.Time, act func())) {
	for i := range c.workers {
		w := &c.workers[i]
		switch d := c.cfg.Deadlines; w.life.State {
		case life.Backoff:
			if c.needed(w) {
				f(w.life.Until, nil)
			}
		case life.Launching:
			c.lifeDeadline(f, w, d.Launch, "configured")
		case life.Warming:
			c.lifeDeadline(f, w, d.WarmUp, "certified")
		case life.Draining:
			c.lifeDeadline(f, w, d.Drain, "drained")
		case life.Certified, life.Ready:
			if o, at, ok := w.earliest(); ok {
				f(at, func() { c.orderOverdue(w, o) })
			}
		}
	}
	if c.end.on && !c.end.quick && c.cfg.Deadlines.Stop > 0 && c.end.code != runner.ExitDone {
		f(c.end.since.Add(c.cfg.Deadlines.Stop), func() {
			c.finish(runner.ExitFailed, fmt.Sprintf("%s; but it took longer than %v to save and drain", c.end.reason, c.cfg.Deadlines.Stop), true)
		})
	}
}

func (c *Core) lifeDeadline(f func(time.Time, func()), w *worker, d time.Duration, want string) {
	if d > 0 {
		f(w.life.Since.Add(d), func() {
			c.kill(w, runner.CauseDeadline, fmt.Sprintf("it was not %s within %v", want, d), "")
		})
	}
}

// earliest gives the order whose deadline comes first. An order's time runs
// from when it was sent, or from the worker's last reply: orders queue. An image
// whose copy is taken waits for no other, so it has its time from then on.
func (w *worker) earliest() (first order, at time.Time, ok bool) {
	for _, o := range w.orders {
		if o.deadline == 0 {
			continue
		}
		from := o.sent
		if w.heard.After(from) && !o.taken {
			from = w.heard
		}
		if t := from.Add(o.deadline); !ok || t.Before(at) {
			first, at, ok = o, t, true
		}
	}
	return first, at, ok
}

// orderOverdue ends a worker that did not answer, except where it may be
// waiting for a peer: then the step is given up first, and who does not
// answer that either is at fault.
func (c *Core) orderOverdue(w *worker, o order) {
	t, train := o.order.(runner.Train)
	if !o.void && (train && t.Last && len(c.ranks) > 1 || is[runner.Join](o.order)) && (c.step.Phase == step.Open || c.step.Phase == step.Joining) {
		e := of(w, runner.Alarm, "step overdue", fmt.Sprintf("%s was not answered within %v", runner.OrderType(o.order), o.deadline))
		e.Step = c.step.N
		c.emit(e)
		c.stepEvent(step.Event{Kind: step.Refuse})
		return
	}
	c.kill(w, runner.CauseDeadline, fmt.Sprintf("it did not answer %s within %v", runner.OrderType(o.order), o.deadline), "")
}

// expire acts on the first deadline that has passed. None has before the Tick
// that setWake asked for: what became due since lies after it.
func (c *Core) expire() (acted bool) {
	if !c.wake.IsZero() && c.now.Before(c.wake) {
		return false
	}
	var act func()
	c.deadlines(func(at time.Time, f func()) {
		if act == nil && f != nil && !c.now.Before(at) {
			act = f
		}
	})
	if act == nil {
		return false
	}
	act()
	return true
}

// suspended starts every deadline anew: in the time that is gone nobody could
// have been heard.
func (c *Core) suspended() {
	for i := range c.workers {
		w := &c.workers[i]
		for n := range w.orders {
			w.orders[n].sent = c.now
		}
		if s := w.life.State; s == life.Launching || s == life.Warming || s == life.Draining {
			w.life.Since = c.now
		}
	}
	if c.end.on {
		c.end.since = c.now
	}
}

// setWake asks for a Tick at the earliest deadline, unless one that comes no
// later is out. A Tick too early does no harm.
func (c *Core) setWake() {
	first := c.soonest
	if c.wake.IsZero() || !c.steady() {
		first = c.earliest()
	}
	c.soonest = time.Time{}
	if first.IsZero() || !c.wake.IsZero() && !first.Before(c.wake) || c.end.finished {
		return
	}
	c.wake = first
	c.do(Wake{At: first})
}

// earliest looks at everything that has a deadline.
func (c *Core) earliest() (first time.Time) {
	c.deadlines(func(at time.Time, _ func()) {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	})
	return first
}

// steady reports whether nothing but a new order can have brought a deadline:
// those are in soonest, and every other one only moved further away.
func (c *Core) steady() bool {
	return !c.end.on && c.allReady()
}
