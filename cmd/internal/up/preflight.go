package up

import (
	"context"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// preflight refuses what this machine cannot do, before anything is started,
// and settles where workers run, unless a plugin is asked.
func (u *up) preflight(ctx context.Context) error {
	c := u.config
	if c.Target.Directory != "" {
		if err := c.CheckTarget(c.Target.Directory); err != nil {
			return err
		}
	}
	model, err := machine.Target(c)
	if err != nil {
		return err
	}
	m, err := machine.Read(ctx, c)
	if err != nil {
		return err
	}
	m.Cores = u.cores
	costs, err := machine.Costs(c)
	if err != nil {
		return err
	}
	p, c, err := plan.For(c, model, m.Machine, costs)
	if err != nil {
		return err
	}
	if c != u.config { // with the counts that were left to the scheduler
		u.config = c
		if err := u.writeConfig(); err != nil {
			return err
		}
	}
	if !p.Fits {
		return runner.Errorf(runner.Exhausted, "plan run: want %s of memory, have %s (%s)", config.Size(p.MemoryBytes), config.Size(m.Memory.Have), m.Memory.Where).
			WithHint("`dflash-runner plan` shows what takes it: fewer workers or slots, or smaller buckets")
	}
	u.plan, u.gpus, u.has = p, m.GPUs, m.Machine
	return nil
}

// announce tells what is not as one might expect of where workers run, once
// that is settled.
func (u *up) announce() {
	if p := u.plan; p.Arenas.Reason != "" {
		u.warn("arenas", "rows go through host memory ("+p.Arenas.Kind+"), as "+p.Arenas.Reason)
	}
	for _, note := range u.plan.Notes {
		u.note("plan", note)
	}
}
