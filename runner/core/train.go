package core

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/rows"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// maxBlame is how often a drafter may refuse a step between two commits before
// it is taken to be at fault. A broken sum makes innocent ranks refuse too.
const maxBlame = 3

// stepEvent lets an event happen to the step. When it turns into an abort,
// every living rank is told.
func (c *Core) stepEvent(e step.Event) bool {
	if e.Kind == step.Lose && c.step.Phase == step.Committing && c.cfg.without.finalChoice {
		c.undecide()
	}
	before := c.step
	next, ok := step.Next(c.step, e)
	c.step = next
	if before.Phase != step.Aborting && next.Phase == step.Aborting {
		c.abort()
	}
	if next.Phase != before.Phase || next.N != before.N {
		for r := range c.ranks {
			c.rank(r).micro, c.rank(r).sent = 0, false
		}
	}
	return ok
}

// join makes a communicator once every drafter is ready with the state of the
// decided step (5.7: barriers are here, never in the communicator).
func (c *Core) join() bool {
	if c.step.Phase != step.Apart || c.stopping() || c.restore.wanted || c.held() || c.over(c.decided+1) {
		return false
	}
	for r := range c.ranks {
		w := c.rank(r)
		if w.life.State != life.Ready || !w.has || w.at != c.decided || w.waits(stepOrder) {
			return false
		}
	}
	if c.decided == 0 && c.differ() {
		return true
	}
	c.communicator++
	c.stepEvent(step.Event{Kind: step.Join, N: c.decided + 1})
	for r := range c.ranks {
		c.send(c.rank(r), runner.Join{At: c.at(c.decided), World: uint32(len(c.ranks)), Rank: runner.Rank(r)}, noTurn, 0)
	}
	return true
}

// stepOrder accepts orders that must be over before a communicator is made.
func stepOrder(o runner.Order) bool {
	switch o.(type) {
	case runner.Join, runner.Train, runner.Commit, runner.Abort, runner.Load:
		return true
	}
	return false
}

// differ ends the run when the drafters do not begin with equal parameters.
func (c *Core) differ() bool {
	for r := range c.ranks {
		if a, b := c.rank(0), c.rank(r); a.parameters != b.parameters {
			c.finish(runner.ExitHopeless, fmt.Sprintf("drafters differ before the first step: %v has parameters %.6x, %v %.6x", a.id, a.parameters, b.id, b.parameters), true)
			return true
		}
	}
	return false
}

func (c *Core) joined(w *worker, o order, r runner.Joined) bool {
	if r.Communicator != o.order.(runner.Join).Communicator {
		return false
	}
	if o.void {
		c.aborting(w)
		return true
	}
	c.stepEvent(step.Event{Kind: step.Done, Rank: w.id.Rank})
	return true
}

// trained marks the row's buffer and frees the turn (the order is gone).
func (c *Core) trained(w *worker, r runner.Trained) {
	for i := range w.buffers {
		if r.Row != 0 && w.buffers[i].row == r.Row {
			w.buffers[i].trained = true
		}
	}
	if r.Row != 0 {
		c.ended(w, training)
	}
	c.aborting(w)
}

// voted takes a vote, if its attempt still stands.
func (c *Core) voted(w *worker, o order, v runner.Voted) bool {
	order := o.order.(runner.Train)
	if v.At != order.At || !order.Last {
		return false
	}
	if o.void {
		c.aborting(w)
		return true
	}
	if !c.ballotNames(w, v) {
		return false
	}
	c.stepEvent(step.Event{Kind: step.Ballot, Rank: w.id.Rank, Vote: step.Vote{Rows: v.Rows, Weight: v.Weight, Norm: v.Norm, Finite: v.Finite}})
	return true
}

// ballotNames reports whether a vote is about just the rows of its rank.
func (c *Core) ballotNames(w *worker, v runner.Voted) bool {
	i := 0
	for _, row := range c.planOf(v.Step).Plan.Rows[w.id.Rank] {
		if row == 0 {
			continue
		}
		if i >= len(v.Rows) || v.Rows[i].Row != row {
			return false
		}
		i++
	}
	return i == len(v.Rows)
}

// judge decides the open step when all voted (rule 3), or draws what follows
// from votes that are not finite or differ.
func (c *Core) judge() bool {
	switch c.step.Judge() {
	case step.Agreed:
		return c.decide()
	case step.NotFinite:
		c.notFinite()
		return true
	case step.Differ:
		c.finish(runner.ExitHopeless, c.differing(), true)
		return false
	}
	return false
}

func (c *Core) differing() string {
	why := fmt.Sprintf("drafters differ at step %d:", c.step.N)
	for r := range c.step.Ranks {
		v := c.step.Ranks[r].Vote
		why += fmt.Sprintf(" %v voted weight %08x norm %08x;", c.rank(r).id, v.Weight, v.Norm)
	}
	return why
}

// decide waits for what must come first: the plan's durability (rule 1), and
// the copy for the image of the step before, which the commit would change.
func (c *Core) decide() bool {
	p := c.planOf(c.step.N)
	if c.journal.durable < p.number && !c.cfg.without.durablePlan {
		c.sync(p.number)
		return false
	}
	if c.imageDue() || c.imageReads() || len(c.evals) > 1 {
		return false
	}
	rec := runner.CommitRecord{Step: c.step.N, Lineage: c.lineage, Weight: c.step.Ranks[0].Vote.Weight, Norm: c.step.Ranks[0].Vote.Norm, Chain: p.Chain}
	for _, r := range c.step.Ranks {
		rec.Rows = append(rec.Rows, r.Vote.Rows...)
	}
	c.stepEvent(step.Event{Kind: step.Decide})
	c.journal.commit = c.append(rec)
	c.decided, c.chain = c.step.N, p.Chain
	c.figures.commit(rec, p, c.cfg.SourceOf)
	c.figures.moments.Decided = c.now
	for r := range c.ranks {
		c.rank(r).blame = 0
	}
	c.passed()
	c.emitStep(rec, c.figures.stalls.decided())
	c.spiked(rec)
	return true
}

// notFinite settles the rows at fault as skipped, and plans the step again
// without them; no other row moves (rule 9).
func (c *Core) notFinite() {
	n := c.step.N
	bad := c.faulty()
	c.figures.notFinite++
	for _, row := range bad {
		c.skip(n, row)
	}
	c.replan(n, bad)
	c.stepEvent(step.Event{Kind: step.Refuse})
	if c.figures.notFinite >= c.cfg.NonFinite || len(bad) == 0 {
		c.finish(runner.ExitHopeless, fmt.Sprintf("%d votes running were not finite, the last at step %d, %s", c.figures.notFinite, n, rowsAre(bad)), false)
	}
}

// rowsAre names the rows at fault in a sentence.
func rowsAre(bad []runner.Row) string {
	if len(bad) == 0 {
		return "with no row left in it"
	}
	names := fmt.Sprint(bad[0])
	for _, row := range bad[1:] {
		names += fmt.Sprintf(", %d", row)
	}
	return "for row " + names
}

// faulty gives the rows whose own loss is not finite; where only the norm is
// not, the row with the highest loss per weight.
func (c *Core) faulty() (bad []runner.Row) {
	var worst runner.RowLoss
	for _, r := range c.step.Ranks {
		for _, l := range r.Vote.Rows {
			switch {
			case !finite(l.Numerator) || !finite(l.Denominator):
				bad = append(bad, l.Row)
			case worst.Row == 0 || l.Numerator*worst.Denominator > worst.Numerator*l.Denominator:
				worst = l
			}
		}
	}
	if len(bad) == 0 && worst.Row != 0 {
		bad = append(bad, worst.Row)
	}
	return bad
}

func finite(x float64) bool { return x-x == 0 }

func (c *Core) skip(n runner.Step, row runner.Row) {
	rec := runner.SkipRecord{Step: n, Lineage: c.lineage, Row: row, Reason: "not finite"}
	for _, p := range c.planOf(n).row(row).Pieces {
		rec.Samples, rec.Draws = append(rec.Samples, p.Sample), append(rec.Draws, p.Draw)
	}
	c.append(rec)
	c.figures.skipped += uint64(len(rec.Samples))
	c.emit(runner.Event{Level: runner.Warn, Name: "row skipped", Step: n, Row: row, Lineage: c.lineage, Message: "its loss or the gradient with it was not finite"})
}

// replan writes step plan n anew without rows, and the later ones after it,
// whose chains it changes.
func (c *Core) replan(n runner.Step, without []runner.Row) {
	prev := c.chain
	for ; n <= c.planned; n++ {
		p := c.planOf(n)
		s := rows.Step{Plan: p.Plan, Rows: p.Rows}
		for _, row := range without {
			if t, ok := s.Without(row); ok {
				s = t
			}
		}
		*p = newPlan(runner.PlanRecord{Plan: s.Plan, Rows: s.Rows, Chain: rows.Chain(prev, s)})
		p.number = c.append(p.PlanRecord)
		prev = p.Chain
	}
	c.journal.barrier = c.journal.number
	c.sync(c.journal.barrier)
}

func (c *Core) committed(w *worker, o runner.Commit, r runner.Committed) bool {
	if r.Step != o.Step {
		return false
	}
	w.at = o.Step
	for _, row := range c.planOf(o.Step).Plan.Rows[w.id.Rank] {
		for i := range w.buffers {
			if row != 0 && w.buffers[i].row == row {
				w.buffers[i] = buffer{}
			}
		}
	}
	c.stepEvent(step.Event{Kind: step.Done, Rank: w.id.Rank})
	return true
}
