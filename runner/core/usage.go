package core

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// doing is what a worker's time goes to: what it computes, or why it does not.
type doing uint8

const (
	absent     doing = iota // it takes no orders: dead, being replaced, warming up
	training                // a micro-step
	committing              // the update
	producing               // a row
	evaluating              // a drafter
	voting                  // its share of the step is trained: figures, and the other ranks, are waited for
	joining                 // a communicator is made, left or loaded for
	waiting                 // all is there but the turn: another worker computes on its device, or a row is let be (paced)
	noRow                   // a drafter's next row has not come
	noSlot                  // a target's slots are all in use
	nothing                 // there is nothing to do yet
	doings
)

var doingNames = [doings]string{"absent", "train", "commit", "produce", "evaluate", "vote", "join", "turn", "row", "slot", "nothing"}

// Usage is a worker's time since the first order to train, up to the last
// decision, by what it went to.
type Usage [doings]time.Duration

// Done is how many of a worker's orders ended in the time of Usage, by what they
// were: micro-steps, updates and rows.
type Done [doings]uint64

// ended counts an order that was answered.
func (c *Core) ended(w *worker, what doing) {
	if c.accounts() {
		w.done[what]++
	}
}

// accounts reports whether time counts: from the first order to train to the
// last decision.
func (c *Core) accounts() bool {
	return !c.figures.moments.Training.IsZero() && !c.over(c.decided+1) && !c.end.on
}

// account puts the time since the last input down to what each worker was doing.
func (c *Core) account(now time.Time) {
	from := c.figures.accounted
	c.figures.accounted = now
	if !c.accounts() {
		return
	}
	spent := now.Sub(from)
	c.figures.stalls.spend(c.keptBy(), spent)
	for i := range c.workers {
		w := &c.workers[i]
		w.usage[c.doing(w, &c.idle)] += spent
	}
}

// outlook is what idle targets have before them, found out once for all of
// them and for all who ask: planning, the giving of turns, and the account of
// what they do until the next input. Whoever changes something forgets it.
type outlook struct {
	known  bool
	row    *runner.RowPlan // the lowest unproduced one; nil: none
	step   runner.Step     // that it is of
	makers []bool          // by rank: the targets that may make it now
}

func (o *outlook) of(c *Core) *outlook {
	if !o.known {
		o.known = true
		o.row, o.step = c.unproduced()
		c.makers(o)
	}
	return o
}

// makes reports whether a target may make the lowest unproduced row now.
func (o *outlook) makes(w *worker) bool { return o.makers[w.id.Rank] }

// doing says what a worker does now. An order without a turn, such as a pull or
// an image, goes on beside something else.
func (c *Core) doing(w *worker, rows *outlook) doing {
	if w.life.State != life.Ready {
		return absent
	}
	for i := range w.orders {
		if w.orders[i].turn == noTurn {
			continue
		}
		switch w.orders[i].order.(type) {
		case runner.Train:
			return training
		case runner.Commit:
			return committing
		case runner.Produce:
			return producing
		case runner.Evaluate:
			return evaluating
		}
	}
	if w.id.Role == runner.Target {
		return c.idleTarget(w, rows.of(c))
	}
	return c.idleDrafter(w)
}

func (c *Core) idleTarget(w *worker, rows *outlook) doing {
	if c.wants(w, rows) || rows.row != nil && c.hasSlot(w) {
		return waiting
	}
	if rows.row != nil {
		return noSlot
	}
	return nothing
}

func (c *Core) idleDrafter(w *worker) doing {
	switch c.step.Phase {
	case step.Open:
	case step.Committing:
		if c.wantsCommit(w) {
			return waiting
		}
		return voting
	default:
		return joining
	}
	p := c.openPlan()
	switch {
	case p == nil:
		return nothing
	case w.micro >= c.micros(p):
		return voting
	case !c.hasRow(w, p):
		return noRow
	case c.wantsTrain(w) || c.reducible():
		return waiting
	}
	return voting // for the other ranks, to reduce together
}

// ByName gives the times that are not zero.
func (u Usage) ByName() map[string]time.Duration {
	out := map[string]time.Duration{}
	for d, spent := range u {
		if spent > 0 {
			out[doingNames[d]] = spent
		}
	}
	return out
}

// ByName gives the counts that are not zero.
func (d Done) ByName() map[string]uint64 {
	out := map[string]uint64{}
	for what, count := range d {
		if count > 0 {
			out[doingNames[what]] = count
		}
	}
	return out
}
