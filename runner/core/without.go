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
