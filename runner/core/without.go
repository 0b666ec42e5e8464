package core

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// protections that the search leaves out one by one, to show that each is
// needed. Nothing else can: the field is not exported.
type protections struct {
	durablePlan  bool // rule 1: a plan is durable before its commit is sent
	finalChoice  bool // rule 3: a decided step is never aborted
	reusedPlans  bool // rule 6: journaled plans are followed first
	dropHighest  bool // the full slot with the highest row gives way
	durableFirst bool // rule 7: the journal is durable before a checkpoint
	rowsInHand   bool // a drafter goes first with a row in hand alone, not for want of one
	askedFirst   bool // a target with a question to answer does not go behind drafters
}

// forgetPlans is what rule 6 forbids.
func (c *Core) forgetPlans(n runner.Step) {
	c.plans = slices.DeleteFunc(c.plans, func(p plan) bool { return p.Plan.Step > n })
	c.planned = n
}

// undecide is what rule 3 forbids.
func (c *Core) undecide() {
	c.step.Phase = step.Open
	c.decided--
	c.chain = runner.Chain{}
	if p := c.planOf(c.decided); p != nil {
		c.chain = p.Chain
	}
}

// lags is what turns forbid: a target kept waiting by a drafter of its device
// that has micro-steps left, and no row for them.
func (c *Core) lags(w *worker) bool {
	p := c.openPlan()
	return p != nil && w.id.Role == runner.Target && slices.ContainsFunc(c.ranks, func(i int) bool {
		return c.workers[i].device == w.device && c.workers[i].micro < c.micros(p)
	})
}
