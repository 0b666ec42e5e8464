package core

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// abort tells every living rank to drop the undecided step. What it was
// ordered for that step is void: its answers free turns and decide nothing.
func (c *Core) abort() {
	for r := range c.ranks {
		w := c.rank(r)
		if c.step.Ranks[r].Gone || w.life.State != life.Ready {
			continue
		}
		for i := range w.orders {
			o := &w.orders[i]
			if is[runner.Train](o.order) || is[runner.Join](o.order) {
				o.void, o.sent, o.deadline = true, c.now, c.cfg.Deadlines.Abort
			}
		}
		c.send(w, runner.Abort{At: c.at(c.step.N)}, noTurn, 0)
	}
	level := runner.Warn
	if c.end.on {
		level = runner.Info // the run ends: the step that was open next is given up
	}
	c.emit(runner.Event{Level: level, Name: "step aborted", Step: c.step.N, Lineage: c.lineage})
}

// aborting notes a rank that is done with the abort: it said so, and nothing
// of the attempt is left on its main thread.
func (c *Core) aborting(w *worker) {
	if c.step.Phase == step.Aborting && !w.waits(stepOrder) {
		c.stepEvent(step.Event{Kind: step.Done, Rank: w.id.Rank})
	}
}

func (c *Core) aborted(w *worker, a runner.Aborted) {
	if !a.Clean {
		w.fault.passing = true // it comes of the abort, not of the work
		c.kill(w, runner.CauseCUDA, "it could not prove its device's context after an abort", "")
		return
	}
	c.aborting(w)
}

// failed takes a worker's answer that an order could not be done. A pull gives
// up its row, a step order the step; after any other the worker is of no use.
func (c *Core) failed(w *worker, o order, f runner.Failed) {
	if w.life.State == life.Draining {
		return // it refuses what it had not begun
	}
	fatal := f.Kind == runner.Fatal
	switch order := o.order.(type) {
	case runner.Pull:
		c.pullFailed(w, order, f)
		if !fatal {
			return
		}
	case runner.Train, runner.Join:
		if !fatal && c.refuse(w, o, f) {
			return
		}
	}
	w.fault = faultOf(o, f.Kind)
	cause := runner.CausePython
	if fatal {
		cause = runner.CauseCUDA
	}
	c.killFor(w, Kill{Cause: cause, Hint: f.Hint, Traceback: f.Traceback,
		Message: fmt.Sprintf("%s failed with kind %v: %s", runner.OrderType(o.order), f.Kind, f.Message)})
}

// refuse aborts the step that a drafter could not do its part of; false when
// that drafter has done so too often.
func (c *Core) refuse(w *worker, o order, f runner.Failed) bool {
	if o.void {
		c.aborting(w)
		return true
	}
	if w.blame++; w.blame >= maxBlame {
		return false
	}
	e := of(w, runner.Warn, "step refused", fmt.Sprintf("%s: %v: %s", runner.OrderType(o.order), f.Kind, f.Message))
	e.Step, e.Hint = c.step.N, f.Hint
	c.emit(e)
	c.stepEvent(step.Event{Kind: step.Refuse})
	return true
}
