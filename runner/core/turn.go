package core

import (
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// Turns: a device has a number of them, and no compute order is sent without
// one. The micro-step that reduces goes to all ranks together and holds every
// turn of their devices; while it waits for them, nothing new starts there but
// rows of later steps that fit before it (paced). So no turn is held by anything
// that waits for another, and none is waited for longer than what runs now takes,
// and rows for which there are slots.

// desk is where turns are given out, by device. Its memory is used again.
type desk struct {
	taken []int     // turns that are held
	kept  []bool    // nothing new starts there
	first []*worker // of those that want a turn
}

// clean gives an empty desk.
func (d *desk) clean(devices int) *desk {
	if len(d.taken) != devices {
		*d = desk{make([]int, devices), make([]bool, devices), make([]*worker, devices)}
	}
	clear(d.taken)
	clear(d.kept)
	clear(d.first)
	return d
}

// count counts the turns that are held. A lost life's orders hold theirs until
// it is reaped: its device may still compute.
func (d *desk) count(c *Core) {
	for i := range c.workers {
		w := &c.workers[i]
		for j := range w.orders {
			switch w.orders[j].turn {
			case oneTurn:
				d.taken[w.on]++
			case allTurn:
				d.taken[w.on] += c.devices[w.on].turns
			}
		}
	}
}

// turns gives out all turns that can be. true if any was given.
func (c *Core) turns() (acted bool) {
	for c.turn() {
		acted = true
		c.idle.known = false
	}
	return acted
}

// turn gives out one: to the micro-step that reduces if it can go, else to the
// first of a device, except where a reducing one waits.
func (c *Core) turn() bool {
	if c.held() || c.restore.wanted {
		return false
	}
	d := c.desk.clean(len(c.devices))
	d.count(c)
	if c.reducible() {
		if c.reduce(d) {
			return true
		}
		for r := range c.ranks {
			d.kept[c.rank(r).on] = true
		}
	}
	for i := range c.workers {
		w := &c.workers[i]
		if d.taken[w.on] >= c.devices[w.on].turns || !c.wants(w, &c.idle) {
			continue
		}
		if first := d.first[w.on]; first == nil || c.before(w, first) {
			d.first[w.on] = w
		}
	}
	for i := range c.workers {
		w := &c.workers[i]
		if d.first[w.on] == w && (!d.kept[w.on] || c.fits(w)) && !(c.cfg.without.rowsInHand && c.lags(w)) {
			return c.serve(w)
		}
	}
	return false
}

// before reports whether w is served before o; both want a turn of one device.
func (c *Core) before(w, o *worker) bool {
	if a, b := c.yields(w), c.yields(o); a != b {
		return b
	}
	return w.granted < o.granted
}

// yields reports whether w lets drafters go first: it makes rows, and has no
// question to answer.
func (c *Core) yields(w *worker) bool {
	return w.id.Role == runner.Target && (c.cfg.without.askedFirst || !c.wantsEvaluate(w))
}

// wants reports whether w wants a turn; rows is what idle targets have before them.
func (c *Core) wants(w *worker, rows *outlook) bool {
	if w.life.State != life.Ready {
		return false
	}
	if w.id.Role == runner.Drafter {
		return c.wantsCommit(w) || c.wantsTrain(w)
	}
	return c.wantsEvaluate(w) || rows.of(c).makes(w)
}

// serve gives a turn to a worker that wants one.
func (c *Core) serve(w *worker) bool {
	switch {
	case w.id.Role == runner.Drafter && c.wantsCommit(w):
		p := c.planOf(c.step.N)
		w.sent = true
		c.send(w, runner.Commit{At: c.at(c.step.N), LR: p.Plan.LR, Chain: p.Chain}, oneTurn, 0)
	case w.id.Role == runner.Drafter:
		c.train(w, oneTurn)
	case c.wantsEvaluate(w) && (!w.evaluated || !c.idle.of(c).makes(w)):
		c.evaluate(w)
	default:
		return c.assignRow(w)
	}
	return true
}

func (c *Core) wantsCommit(w *worker) bool {
	return c.step.Phase == step.Committing && !w.sent && !c.step.Ranks[w.id.Rank].Gone
}

// wantsTrain reports whether a micro-step of w can go that needs nobody else.
func (c *Core) wantsTrain(w *worker) bool {
	p := c.openPlan()
	if p == nil || w.waits(is[runner.Train]) || w.micro >= c.micros(p) {
		return false
	}
	return (len(c.ranks) == 1 || w.micro < c.micros(p)-1) && c.hasRow(w, p)
}

// openPlan is the plan of the step that is open for training, or nil.
func (c *Core) openPlan() *plan {
	if c.step.Phase != step.Open || c.stopping() || c.over(c.step.N) {
		return nil
	}
	return c.planOf(c.step.N)
}

func (c *Core) micros(p *plan) int { return len(p.Plan.Rows[0]) }

// hasRow reports whether the row of w's next micro-step is there.
func (c *Core) hasRow(w *worker, p *plan) bool {
	row := p.Plan.Rows[w.id.Rank][w.micro]
	return row == 0 || w.holds(row)
}

// reducible reports whether every rank waits for its last micro-step alone.
func (c *Core) reducible() bool {
	p := c.openPlan()
	if p == nil || len(c.ranks) == 1 {
		return false
	}
	for r := range c.ranks {
		w := c.rank(r)
		if w.life.State != life.Ready || w.micro != c.micros(p)-1 || w.waits(is[runner.Train]) || !c.hasRow(w, p) {
			return false
		}
	}
	return true
}

// reduce orders the last micro-step from all ranks, if their devices are free.
func (c *Core) reduce(d *desk) bool {
	for r := range c.ranks {
		if d.taken[c.rank(r).on] > 0 {
			return false
		}
	}
	for r := range c.ranks {
		c.train(c.rank(r), allTurn)
	}
	return true
}

func (c *Core) train(w *worker, t turn) {
	p := c.planOf(c.step.N)
	if first := &c.figures.moments.Training; first.IsZero() {
		*first = c.now
	}
	micro := w.micro
	w.micro++
	c.send(w, runner.Train{At: c.at(c.step.N), Micro: uint32(micro), Row: p.Plan.Rows[w.id.Rank][micro], Last: w.micro == c.micros(p)}, t, 0)
}

// at names the present lineage and communicator, and a step.
func (c *Core) at(n runner.Step) runner.At {
	return runner.At{Lineage: c.lineage, Communicator: c.communicator, Step: n}
}

// assignment is the scheduler's choice of a target for a row.
type assignment struct {
	out    bool
	row    runner.Row
	target runner.Worker // chosen for row; zero: none
}

// makers finds the targets that may be given the lowest unproduced row now: the
// one that the scheduler named, if it is free, else every free one that may begin it.
func (c *Core) makers(o *outlook) {
	if len(o.makers) != len(c.targets) {
		o.makers = make([]bool, len(c.targets))
	}
	clear(o.makers)
	if o.row == nil || c.stopping() || c.assign.out {
		return
	}
	if c.assign.row == o.row.Row {
		if w := c.worker(c.assign.target); w != nil && w.id.Role == runner.Target && c.mayMake(w, o.row.Row, o.step) {
			o.makers[w.id.Rank] = true
			return
		}
	}
	for rank, t := range c.targets {
		o.makers[rank] = c.mayMake(&c.workers[t], o.row.Row, o.step)
	}
	c.paced(o)
}

// assignRow gives the lowest unproduced row to w, which has a turn, after
// asking the scheduler where there is a choice.
func (c *Core) assignRow(w *worker) bool {
	o := c.idle.of(c)
	if c.cfg.AskScheduler && c.assign.row != o.row.Row {
		if free := o.free(c); len(free) > 1 {
			c.assign = assignment{out: true, row: o.row.Row}
			c.do(Assign{Row: *o.row, Free: free})
			return true
		}
	}
	c.produce(w, *o.row, o.step)
	return true
}

// free names the makers.
func (o *outlook) free(c *Core) (free []runner.Worker) {
	for rank, t := range c.targets {
		if o.makers[rank] {
			free = append(free, c.workers[t].id)
		}
	}
	return free
}

func (c *Core) assigned(in Assigned) {
	if c.assign.out && c.assign.row == in.Row {
		c.assign = assignment{row: in.Row, target: in.Target}
	}
}
