package core

import (
	"fmt"
	"hash/fnv"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/gate"
	"github.com/dflash-runner/dflash-runner/runner/lease"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// keepFailures bounds the failures kept for status.
const keepFailures = 50

// move lets an event happen to a worker's life.
func (c *Core) move(w *worker, e life.Event) bool {
	r := c.cfg.Restart
	next, ok := life.Next(w.life, e, c.now, life.Budget{Deaths: r.Budget, Decay: r.Decay, Base: r.Base, Cap: r.Cap, Jitter: r.Jitter, Seed: seedOf(r.Seed, w.id)})
	switch was, is := w.life.State == life.Ready, next.State == life.Ready; {
	case is && !was:
		c.ready++
	case was && !is:
		c.ready--
	}
	w.life = next
	return ok
}

// seedOf gives each worker draws of its own.
func seedOf(seed uint64, w runner.Worker) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %v", seed, w) // a hash takes everything
	return h.Sum64()
}

// admit lets an event happen at the gate, and warms up whom it lets in.
func (c *Core) admit(e gate.Event, l runner.Life) {
	g, in := gate.Next(c.gate, e, l, c.now)
	c.gate = g
	for _, l := range in {
		if w := c.find(l); w != nil && c.move(w, life.Admitted) {
			c.do(WarmUp{Life: l})
		}
	}
}

// kill ends a life: from now on nothing is believed of it, but its slots, its
// place at the gate and its device stay taken until it is reaped.
func (c *Core) kill(w *worker, cause runner.Cause, message, hint string) {
	c.killFor(w, Kill{Cause: cause, Message: message, Hint: hint})
}

func (c *Core) killFor(w *worker, k Kill) {
	if !w.life.State.Running() || w.killed {
		return
	}
	w.killed = true
	w.judged = k.Cause != runner.CauseKilled && w.life.State != life.Draining
	k.Life = w.current()
	c.do(k)
	c.lose(w)
}

// lose is told once of each life that ends before it was drained.
func (c *Core) lose(w *worker) {
	l := w.current()
	if w.life.State.Running() && w.life.State != life.Lost {
		c.fell(w)
	}
	if !c.move(w, life.Lose) {
		return
	}
	c.admit(gate.Lose, l)
	c.ledger.ApplyAll(lease.Lose, l)
	c.forsake(w)
	if w.id.Role == runner.Drafter {
		c.stepEvent(step.Event{Kind: step.Lose, Rank: w.id.Rank})
	}
}

// forsake forgets what a life held and what it was asked to do for others.
func (c *Core) forsake(w *worker) {
	w.has, w.at, w.buffers, w.micro, w.sent = false, 0, [2]buffer{}, 0, false
	w.maps, w.plain = nil, false
	c.imageLost(w)
	c.evaluationLost(w)
}

func (c *Core) laneClosed(in LaneClosed) {
	if w := c.find(in.Life); w != nil && w.life.State != life.Draining {
		c.kill(w, runner.CauseProtocol, "its lane closed", "")
	}
}

func (c *Core) unfit(in Unfit) {
	if w := c.find(in.Life); w != nil {
		c.kill(w, in.Cause, in.Message, in.Hint)
	}
}

// exited is the reap: nothing of the life runs any more.
func (c *Core) exited(in Exited) {
	w := c.find(in.Life)
	if w == nil || !w.life.State.Running() {
		return
	}
	if in.Failure != nil || w.life.State != life.Draining {
		c.lose(w)
	}
	c.reaped++
	w.orders, w.killed = nil, false
	c.ledger.ApplyAll(lease.Reap, in.Life)
	c.move(w, life.Reap)
	if w.life.State == life.Gone {
		c.forsake(w)
	}
	c.admit(gate.Reap, in.Life)
	c.report(w, in.Failure)
	c.aftermath(w, in.Failure)
}

// aftermath decides what a death means for the run: whether its worker is
// started again, and whether that is of any use.
func (c *Core) aftermath(w *worker, f *runner.Failure) {
	if w.life.State == life.Failed {
		c.gaveUp(w, fmt.Sprintf("%v died %d times, more than its restart budget of %d bears", w.id, w.life.Strikes, c.cfg.Restart.Budget))
		return
	}
	if w.life.State != life.Backoff || f == nil || c.end.on {
		return // it is gone, or was ended with the run
	}
	if why := c.repeated(w, f); why != "" {
		c.finish(runner.ExitHopeless, why, false)
		return
	}
	if c.cfg.Restart.Never {
		c.finish(runner.ExitFailed, fmt.Sprintf("%v died, and nothing is started again (workers.on_failure: stop): %s: %s", w.current(), f.Cause, f.Message), false)
		return
	}
	c.askVerdict(w, f)
	c.hold(w)
}

// report tells people of an end, once. While the run ends, a life that was told
// to end is none that died; one that a verdict ended did, whatever the run does.
func (c *Core) report(w *worker, f *runner.Failure) {
	if f == nil {
		c.emit(of(w, runner.Info, "worker ended", ""))
		return
	}
	if w.life.State == life.Gone || c.end.on && f.ForcedBySelf && !w.judged {
		c.emit(of(w, runner.Info, "worker ended", f.Message))
		return
	}
	told := *f
	told.Doing, told.Incident, told.Follows = w.fault.doing, w.fault.incident, w.fault.follows
	f = &told
	if c.figures.failures = append(c.figures.failures, *f); len(c.figures.failures) > keepFailures {
		c.figures.failures = c.figures.failures[1:]
	}
	e := of(w, runner.Alarm, "worker died", f.Message)
	e.Failure, e.Hint = f, f.Hint
	c.emit(e)
}

// gaveUp decides what a worker that failed for good means for the run.
func (c *Core) gaveUp(w *worker, why string) {
	if c.end.on {
		return // it was ended on purpose
	}
	c.emit(of(w, runner.Alarm, "worker failed for good", why))
	if w.id.Role == runner.Drafter {
		c.finish(runner.ExitFailed, why, false)
		return
	}
	for _, i := range c.targets {
		if c.workers[i].life.State != life.Failed {
			return // others go on
		}
	}
	c.finish(runner.ExitFailed, why, false)
}

// startLife starts a worker, or starts it again.
func (c *Core) startLife(w *worker) {
	if w.pending != 0 && w.pending == w.life.Generation && w.life.State == life.Backoff {
		c.policy(w) // it has not heard of the verdict; a stop may still come
	}
	if c.move(w, life.Start) {
		w.seq, w.blame, w.refused, w.orders = 0, 0, 0, nil
		w.fault, w.began, w.answers = fault{}, c.reaped, 0
		w.certificate, w.evaluated, w.judged = runner.Certificate{}, false, false
		c.do(Launch{Life: w.current(), Device: w.device})
	}
}

// restart starts the workers whose backoff is over.
func (c *Core) restart() (acted bool) {
	if c.allReady() {
		return false
	}
	for i := range c.workers {
		w := &c.workers[i]
		if w.life.State == life.Backoff && !c.now.Before(w.life.Until) && c.needed(w) {
			if c.hold(w); w.life.State == life.Backoff {
				c.startLife(w)
			}
			acted = true
		}
	}
	return acted
}

// needed reports whether a worker is still of use to a run that is ending.
func (c *Core) needed(w *worker) bool {
	return !c.end.on || !c.end.quick && !c.end.draining && w.id.Role == runner.Target && len(c.evals) > 0
}
