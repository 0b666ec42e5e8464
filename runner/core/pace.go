package core

import (
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/pace"
)

// paced leaves those makers that may begin their row now: a row of a later step is
// left where it would keep the last micro-step of the open one waiting; see package
// pace.
func (c *Core) paced(o *outlook) {
	if o.step <= c.step.N || !slices.Contains(o.makers, true) {
		return
	}
	ranks := c.paceOf(o.row)
	if ranks == nil {
		return
	}
	until, reducible := pace.Until(ranks), c.reducible()
	for rank, t := range c.targets {
		r := slices.IndexFunc(c.ranks, func(r int) bool { return c.workers[r].on == c.workers[t].on })
		switch {
		case r < 0:
		case ranks[r].Row == 0:
			o.makers[rank] = o.makers[rank] && !reducible // nobody knows how long one takes
		default:
			o.makers[rank] = o.makers[rank] && !ranks[r].Holds(until)
		}
	}
}

// fits reports whether w may begin a row while all ranks wait for the last
// micro-step.
func (c *Core) fits(w *worker) bool {
	return w.id.Role == runner.Target && !c.wantsEvaluate(w) && c.pairs() && c.idle.of(c).makes(w)
}

// paceOf says how ranks stand before the last micro-step, and what row would take
// on their devices; nil where that does not say when they will be ready.
func (c *Core) paceOf(row *runner.RowPlan) []pace.Rank {
	p := c.openPlan()
	if p == nil || !c.pairs() {
		return nil
	}
	ranks := make([]pace.Rank, len(c.ranks))
	for r := range ranks {
		w := c.rank(r)
		if w.life.State != life.Ready || w.micro >= c.micros(p) {
			return nil
		}
		ranks[r].Free = c.rest(w)
		if t := c.partner(w); t != nil {
			ranks[r].Free = max(ranks[r].Free, c.rest(t))
			ranks[r].Row, ranks[r].Slots = t.lately.Takes(int(row.Bucket)), c.ledger.Frees(t.arena)
		}
		ranks[r].Ready = ranks[r].Free
		takes := w.lately.Takes(1)
		for m := w.micro; m < c.micros(p); m++ {
			if id := p.Plan.Rows[r][m]; id != 0 && !w.holds(id) {
				ranks[r].Ready = max(ranks[r].Ready, c.stillMade(id))
			}
			if m < c.micros(p)-1 {
				ranks[r].Ready, ranks[r].Left = ranks[r].Ready+takes, ranks[r].Left+takes
			}
		}
	}
	return ranks
}

// stillMade is how long a row that was begun is still made.
func (c *Core) stillMade(row runner.Row) time.Duration {
	for _, t := range c.targets {
		for _, o := range c.workers[t].orders {
			if p, ok := o.order.(runner.Produce); ok && p.Row == row {
				return c.rest(&c.workers[t])
			}
		}
	}
	return 0
}

// rest is what is to come of what a worker computes, as far as that is known.
func (c *Core) rest(w *worker) time.Duration {
	for _, o := range w.orders {
		if o.turn == noTurn {
			continue
		}
		tokens := 1
		if p, ok := o.order.(runner.Produce); ok {
			tokens = int(p.Bucket)
		}
		return pace.Rest(w.lately.Takes(tokens), c.now.Sub(o.sent))
	}
	return 0
}

// pairs reports whether several ranks each have a device of one turn that they
// share with one target at most.
func (c *Core) pairs() bool {
	if len(c.ranks) == 1 {
		return false
	}
	for r := range c.ranks {
		w, others := c.rank(r), [2]int{}
		for i := range c.workers {
			if x := &c.workers[i]; x.on == w.on {
				if x.id.Role == runner.Drafter {
					others[0]++
				} else {
					others[1]++
				}
			}
		}
		if others[0] > 1 || others[1] > 1 || c.devices[w.on].turns > 1 {
			return false
		}
	}
	return true
}

// partner is the target of a drafter's device, or nil.
func (c *Core) partner(w *worker) *worker {
	for _, t := range c.targets {
		if c.workers[t].on == w.on {
			return &c.workers[t]
		}
	}
	return nil
}

// hasSlot reports whether an idle target has a slot free: it lets a row be.
func (c *Core) hasSlot(w *worker) bool { return c.ledger.Frees(w.arena) > 0 }
