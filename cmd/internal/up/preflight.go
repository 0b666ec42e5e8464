package up

import (
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// preflight refuses what this machine cannot do, before anything is started,
// and settles where workers run. What this version cannot do is refused with
// the configuration.
func (u *up) preflight() error {
	c := u.config
	model := c.EmbeddedModel()
	if c.Target.Directory != "" {
		if err := c.CheckTarget(c.Target.Directory); err != nil {
			return err
		}
		var err error
		if model, err = config.ReadModel(c.Target.Directory); err != nil {
			return err
		}
	}
	limit, err := arena.Available()
	if err != nil {
		return err
	}
	p, err := plan.Make(c, model, plan.Machine{Cores: u.cores, Available: limit.Have})
	if err != nil {
		return err
	}
	if !p.Fits {
		return runner.Errorf(runner.Exhausted, "plan run: want %s of memory, have %s (%s)", config.Size(p.MemoryBytes), config.Size(limit.Have), limit.Where).
			WithHint("`dflash-runner plan` shows what takes it: fewer workers or slots, or smaller buckets")
	}
	if p.Arenas.Reason != "" {
		u.warn("arenas", "rows go through host memory ("+p.Arenas.Kind+"), as "+p.Arenas.Reason)
	}
	u.plan = p
	return nil
}
