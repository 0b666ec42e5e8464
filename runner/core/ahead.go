package core

import "github.com/dflash-runner/dflash-runner/runner"

// arrangeAhead asks for the next samples while there still are rows for some
// steps, so that no target waits while a scheduler thinks. What is asked for
// sooner comes in the same order and packs into the same rows.
func (c *Core) arrangeAhead() bool {
	ready := c.planner.Ready()
	if c.asked || ready >= c.cfg.ArrangeAhead || c.over(c.planned+runner.Step(ready)+1) {
		return false
	}
	epoch, left := c.planner.Wanted()
	if left == 0 || c.cfg.Epochs > 0 && epoch > c.cfg.Epochs {
		return false
	}
	c.arrange(epoch, left)
	return true
}

// arrange asks for a horizon of samples.
func (c *Core) arrange(epoch uint32, left int) {
	c.asked = true
	c.do(Arrange{Epoch: epoch, Count: min(left, c.planner.Horizon(c.cfg.HorizonSteps)), Left: left, Losses: c.figures.losses.all()})
}
