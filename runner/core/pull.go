package core

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/lease"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// maxRefused is how many pulls may fail running before their drafter is
// taken to be at fault.
const maxRefused = 3

// pulling orders pulls.
func (c *Core) pulling() (acted bool) {
	if c.held() || c.restore.wanted || c.stopping() {
		return false
	}
	for r := range c.ranks {
		acted = c.pull(r) || acted
	}
	return acted
}

// stepOf gives the undecided step that names a row.
func (c *Core) stepOf(row runner.Row) (runner.Step, bool) {
	for n := c.decided + 1; n <= c.planned; n++ {
		if c.planOf(n).find(row) >= 0 {
			return n, true
		}
	}
	return 0, false
}

// pull orders the rank's next row, if it lies in a slot and has a place to go.
func (c *Core) pull(r int) bool {
	w := c.rank(r)
	if w.life.State != life.Ready {
		return false
	}
	row, n, ahead := c.nextRow(r)
	if row == nil {
		return false
	}
	at, s, ok := c.ledger.Find(row.Row)
	if !ok || s.State != lease.Full {
		return false
	}
	i, ok := place(w.buffers, w.training())
	if !ok || !c.mayDrop(r, w.buffers[i], row.Row, n, ahead) || !w.mapped(at.Arena) {
		return false
	}
	c.must(c.ledger.Apply(at, lease.Event{Kind: lease.Read, Life: w.current()}))
	w.buffers[i] = buffer{row: row.Row, pulling: true}
	c.send(w, runner.Pull{RowPlan: *row, Handle: s.Handle}, noTurn, 0)
	return true
}

// nextRow gives the first row in the rank's order that it still has to train
// and does not have, or nil; ahead says that it has a row of a later step already.
func (c *Core) nextRow(rank int) (row *runner.RowPlan, n runner.Step, ahead bool) {
	w := c.rank(rank)
	for n := c.decided + 1; n <= c.planned && !c.over(n); n++ {
		p := c.planOf(n)
		for micro, row := range p.Plan.Rows[rank] {
			switch {
			case row == 0 || c.spent(n, rank, micro):
			case w.buffered(row):
				ahead = ahead || n > c.decided+1
			default:
				return &p.Rows[p.index[rank][micro]], n, ahead
			}
		}
		if n > c.decided+2 {
			break // two buffers never reach further
		}
	}
	return nil, 0, false
}

// mayDrop reports whether a pull of row, of step n, may take b's place: b's
// row is done with, or is needed later than row is. Rows of an undecided step
// are only given up for what the rank has to train next.
func (c *Core) mayDrop(rank int, b buffer, row runner.Row, n runner.Step, ahead bool) bool {
	if b.row == 0 {
		return true
	}
	if c.rank(rank).training() == b.row { // also by an order that is void: it still reads the row
		return false
	}
	of, wanted := c.stepOf(b.row)
	if !wanted {
		return true
	}
	_, micro := c.planOf(of).at(b.row)
	if c.spent(of, rank, micro) {
		return n == c.step.N || !ahead
	}
	if of != n {
		return of > n
	}
	_, other := c.planOf(n).at(row)
	return micro > other
}

func (c *Core) pulled(w *worker, o runner.Pull, r runner.Pulled) bool {
	if r.Row != o.Row {
		return false
	}
	w.refused = 0
	for i := range w.buffers {
		if w.buffers[i].row == o.Row {
			w.buffers[i].pulling = false
		}
	}
	return c.release(w, o)
}

func (c *Core) release(w *worker, o runner.Pull) bool {
	at := runner.Slot{Arena: o.Handle.Arena, Index: o.Handle.Slot}
	return c.ledger.Apply(at, lease.Event{Kind: lease.Release, Life: w.current()}) == nil
}

// pullFailed gives the slot's bytes up: the row is produced again.
func (c *Core) pullFailed(w *worker, o runner.Pull, f runner.Failed) {
	for i := range w.buffers {
		if w.buffers[i].row == o.Row {
			w.buffers[i] = buffer{}
		}
	}
	c.release(w, o)
	w.refused++
	e := of(w, runner.Alarm, "row refused", fmt.Sprintf("pull of arena %d slot %d: %s; the row is produced again", o.Handle.Arena, o.Handle.Slot, f.Message))
	e.Row, e.Hint = o.Row, f.Hint
	c.emit(e)
	if w.refused >= maxRefused {
		c.kill(w, runner.CauseProtocol, fmt.Sprintf("%d of its pulls failed running, the last with: %s", w.refused, f.Message), f.Hint)
	}
}
