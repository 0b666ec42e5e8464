package core

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/lease"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/rows"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// limit is the last step of the run, as far as it is known.
func (c *Core) limit() runner.Step {
	n := c.cfg.Steps
	if c.exhausted && (n == 0 || c.planned < n) {
		n = c.planned
	}
	return n
}

// over reports whether step n is past the run's last.
func (c *Core) over(n runner.Step) bool {
	l := c.limit()
	return n > l && (l != 0 || c.exhausted)
}

// planOf gives step plan n, or nil when it is not made yet.
func (c *Core) planOf(n runner.Step) *plan {
	if len(c.plans) == 0 || n < c.plans[0].Plan.Step || n > c.planned {
		return nil
	}
	return &c.plans[n-c.plans[0].Plan.Step]
}

// planning makes the next step plan when the open step has none, or when a
// target would idle for want of rows.
func (c *Core) planning() bool {
	if c.end.on || c.restore.wanted || c.over(c.planned+1) {
		return false
	}
	if c.planOf(c.decided+1) != nil && !c.starved() {
		return c.arrangeAhead()
	}
	if s, ok := c.planner.Next(); ok {
		c.addPlan(s)
		return true
	}
	if c.asked {
		return false
	}
	epoch, left := c.planner.Wanted()
	if left == 0 || c.cfg.Epochs > 0 && epoch > c.cfg.Epochs {
		c.exhausted = true
		return true
	}
	c.arrange(epoch, left)
	return true
}

// starved reports whether a target could make a row that is not planned.
func (c *Core) starved() bool {
	return c.idle.of(c).row == nil && slices.ContainsFunc(c.targets, func(t int) bool { return c.mayMake(&c.workers[t], 0, 0) })
}

func (c *Core) addPlan(s rows.Step) {
	if c.cfg.without.reusedPlans {
		s.Plan.Step = c.planned + 1
	}
	prev := c.chain
	if p := c.planOf(c.planned); p != nil {
		prev = p.Chain
	}
	p := newPlan(runner.PlanRecord{Plan: s.Plan, Rows: s.Rows, Chain: rows.Chain(prev, s)})
	c.planned = s.Plan.Step
	p.number = c.append(p.PlanRecord)
	c.plans = append(c.plans, p)
}

func (c *Core) arranged(in Arranged) {
	if !c.asked {
		return
	}
	c.asked = false
	if c.end.on {
		return
	}
	if err := c.planner.Feed(in.Epoch, in.Samples); err != nil {
		c.finish(runner.ExitFailed, "arrange samples: "+err.Error(), false)
		return
	}
	c.append(runner.ArrangeRecord{Epoch: in.Epoch, Samples: slices.Clone(in.Samples)})
}

// unproduced gives the lowest row of an undecided step that is nowhere: in no
// slot, in no buffer of its rank, and not trained in the open attempt. nil: none.
func (c *Core) unproduced() (*runner.RowPlan, runner.Step) {
	for n := c.decided + 1; n <= c.planned && !c.over(n); n++ {
		p := c.planOf(n)
		for i := range p.Rows {
			row, at := p.Rows[i].Row, &p.spots[i]
			if c.spent(n, at.rank, at.micro) || c.rank(at.rank).buffered(row) || c.ledger.Holds(row, at.slot) {
				continue
			}
			return &p.Rows[i], n
		}
	}
	return nil, 0
}

// spent reports whether a place's row was trained, or is in training, in the
// open attempt: nothing needs it any more unless that is aborted.
func (c *Core) spent(n runner.Step, rank, micro int) bool {
	return c.step.Phase == step.Open && n == c.step.N && micro < c.rank(rank).micro
}

// mayMake reports whether a target may make row, of step n, now: it has a free
// slot, or, where the row is of the open step, a full one of a higher row, which
// gives way. Row 0 is one that is not planned yet.
func (c *Core) mayMake(w *worker, row runner.Row, n runner.Step) bool {
	if w.life.State != life.Ready || !w.mapped(w.arena) || w.waits(is[runner.Produce]) || w.waits(is[runner.Evaluate]) {
		return false
	}
	free, highest := c.ledger.Room(w.arena)
	return free || row != 0 && highest > row && n == c.decided+1 && !c.cfg.without.dropHighest
}

// produce orders a row of step n from a target, after making room for it.
func (c *Core) produce(w *worker, row runner.RowPlan, n runner.Step) {
	at, s, ok := c.ledger.FreeOf(w.arena)
	if !ok {
		drop, full, _ := c.ledger.HighestFull(w.arena)
		c.must(c.ledger.Apply(drop, lease.Event{Kind: lease.Drop}))
		e := of(w, runner.Warn, "row dropped", "a row of the open step needs its slot")
		e.Row = full.Row
		c.emit(e)
		at, s, _ = c.ledger.FreeOf(w.arena)
	}
	c.must(c.ledger.Apply(at, lease.Event{Kind: lease.Write, Life: w.current(), Row: row.Row}))
	p := c.planOf(n)
	p.spots[p.mustFind(row.Row)].slot = at
	w.evaluated = false
	c.send(w, runner.Produce{RowPlan: row, Slot: at, Version: s.Version}, oneTurn, 0)
}

func (c *Core) produced(w *worker, o runner.Produce, r runner.Produced) bool {
	if r.Row != o.Row {
		return false
	}
	return c.ledger.Apply(o.Slot, lease.Event{Kind: lease.Fill, Life: w.current(), Handle: r.Handle}) == nil
}

// must stops on a broken ledger: it is a bug of the core, and going on could
// hand out bytes that somebody still writes.
func (c *Core) must(err error) {
	if err != nil {
		panic("core: " + err.Error())
	}
}
