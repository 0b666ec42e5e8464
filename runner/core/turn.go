package core

import (
	"slices"

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

// taken gives how many turns of each device are held. A lost life's orders hold
// theirs until it is reaped: its device may still compute.
func (c *Core) taken() map[string]int {
	taken := map[string]int{}
	for i := range c.workers {
		device := c.workers[i].device
		for _, o := range c.workers[i].orders {
			switch o.turn {
			case oneTurn:
				taken[device]++
			case allTurn:
				taken[device] += c.cfg.Devices[device]
			}
		}
	}
	return taken
}

// turns gives out all turns that can be. true if any was given.
func (c *Core) turns() (acted bool) {
	for c.turn() {
		acted = true
	}
	return acted
}

// turn gives out one: to the micro-step that reduces if it can go, else to the
// first of a device, except where a reducing one waits.
func (c *Core) turn() bool {
	c.idle = outlook{}
	if c.held() || c.restore.wanted {
		return false
	}
	kept := map[string]bool{}
	if c.reducible() {
		if c.reduce() {
			return true
		}
		for r := range c.ranks {
			kept[c.rank(r).device] = true
		}
	}
	taken, makers, firsts := c.taken(), c.idle.of(c).makers, map[string]*worker{}
	for i := range c.workers {
		w := &c.workers[i]
		if !c.wants(w, makers) {
			continue
		}
		if first := firsts[w.device]; first == nil || c.before(w, first) {
			firsts[w.device] = w
		}
	}
	for i := range c.workers {
		w := &c.workers[i]
		if c.cfg.without.rowsInHand && c.lags(w) {
			continue
		}
		if firsts[w.device] == w && (!kept[w.device] || c.fits(w)) && taken[w.device] < c.cfg.Devices[w.device] {
			return c.serve(w, makers)
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

// wants reports whether w wants a turn; makers may make the lowest unproduced row.
func (c *Core) wants(w *worker, makers []*worker) bool {
	if w.life.State != life.Ready {
		return false
	}
	if w.id.Role == runner.Drafter {
		return c.wantsCommit(w) || c.wantsTrain(w)
	}
	return c.wantsEvaluate(w) || slices.Contains(makers, w)
}

// serve gives a turn to a worker that wants one.
func (c *Core) serve(w *worker, makers []*worker) bool {
	switch {
	case w.id.Role == runner.Drafter && c.wantsCommit(w):
		p := c.planOf(c.step.N)
		w.sent = true
		c.send(w, runner.Commit{At: c.at(c.step.N), LR: p.Plan.LR, Chain: p.Chain}, oneTurn, 0)
	case w.id.Role == runner.Drafter:
		c.train(w, oneTurn)
	case c.wantsEvaluate(w) && (!w.evaluated || !slices.Contains(makers, w)):
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
func (c *Core) reduce() bool {
	taken := c.taken()
	for r := range c.ranks {
		if taken[c.rank(r).device] > 0 {
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

// makers gives the targets that may be given the lowest unproduced row now; some
// says that there is one.
func (c *Core) makers() (makers []*worker, some bool) {
	row, n, ok := c.unproduced()
	if !ok || c.stopping() || c.assign.out {
		return nil, ok
	}
	free := c.freeTargets(row.Row, n)
	if chosen := c.chosen(row.Row, free); chosen != nil {
		return []*worker{chosen}, true
	}
	return c.paced(free, row, n), true
}

// chosen is the free target that the scheduler named for the row, or nil.
func (c *Core) chosen(row runner.Row, free []*worker) *worker {
	for _, f := range free {
		if c.assign.row == row && c.assign.target == f.id {
			return f
		}
	}
	return nil
}

// assignRow gives the lowest unproduced row to w, which has a turn, after
// asking the scheduler where there is a choice.
func (c *Core) assignRow(w *worker) bool {
	row, n, _ := c.unproduced()
	free := c.freeTargets(row.Row, n)
	chosen := c.chosen(row.Row, free)
	free = c.paced(free, row, n)
	if chosen == nil && c.cfg.AskScheduler && len(free) > 1 && c.assign.row != row.Row {
		c.assign = assignment{out: true, row: row.Row}
		a := Assign{Row: row}
		for _, f := range free {
			a.Free = append(a.Free, f.id)
		}
		c.do(a)
		return true
	}
	c.produce(w, row)
	return true
}

func (c *Core) assigned(in Assigned) {
	if c.assign.out && c.assign.row == in.Row {
		c.assign = assignment{row: in.Row, target: in.Target}
	}
}
