package core

import (
	"github.com/dflash-runner/dflash-runner/runner"
)

// check refuses what no run can be made of. The user's configuration was
// checked before; this guards against wiring.
func (cfg *Config) check() error {
	next := map[runner.Role]runner.Rank{}
	for i, w := range cfg.Workers {
		if w.Worker.Rank != next[w.Worker.Role] {
			return runner.Errorf(runner.Invalid, "check workers: workers[%d]: want rank %d of role %s, got %d", i, next[w.Worker.Role], w.Worker.Role, w.Worker.Rank)
		}
		next[w.Worker.Role]++
		if cfg.Devices[w.Device] < 1 {
			return runner.Errorf(runner.Invalid, "check workers: workers[%d]: device %q: want at least one turn, got %d", i, w.Device, cfg.Devices[w.Device])
		}
	}
	for role, spares := range cfg.Spares {
		for i, device := range spares {
			if cfg.Devices[device] < 1 {
				return runner.Errorf(runner.Invalid, "check spares: %s[%d]: device %q: want at least one turn, got %d", role, i, device, cfg.Devices[device])
			}
		}
	}
	switch e := cfg.Evaluation; {
	case next[runner.Target] == 0 || next[runner.Drafter] == 0:
		return runner.Errorf(runner.Invalid, "check workers: want a target and a drafter, got %d and %d", next[runner.Target], next[runner.Drafter])
	case cfg.GateWidth < 1:
		return runner.Errorf(runner.Invalid, "check gate: width: want at least 1, got %d", cfg.GateWidth)
	case cfg.Slots < 1:
		return runner.Errorf(runner.Invalid, "check arenas: slots: want at least 1, got %d", cfg.Slots)
	case cfg.ArenaKind != "" && cfg.ArenaKind != runner.ArenaMemfd && cfg.ArenaKind != runner.ArenaCUDA:
		return runner.Errorf(runner.Invalid, "check arenas: kind: want %s or %s, got %q", runner.ArenaMemfd, runner.ArenaCUDA, cfg.ArenaKind)
	case cfg.Planner == nil:
		return runner.Errorf(runner.Invalid, "check planner: want one, got none")
	case cfg.Steps == 0 && cfg.Epochs == 0:
		return runner.Errorf(runner.Invalid, "check steps: want steps or epochs above 0, got neither")
	case cfg.HorizonSteps < 1 || cfg.NonFinite < 1 || cfg.KeepLast < 0:
		return runner.Errorf(runner.Invalid, "check limits: want horizon steps and non-finite votes of at least 1 and checkpoints kept of at least 0, got %d, %d and %d", cfg.HorizonSteps, cfg.NonFinite, cfg.KeepLast)
	case cfg.Spikes.Loss < 0 || cfg.Spikes.Norm < 0:
		return runner.Errorf(runner.Invalid, "check spikes: want factors of at least 0, got %g and %g", cfg.Spikes.Loss, cfg.Spikes.Norm)
	case e.Heldout > 0 && e.HeldoutChunk == 0 || e.Prompts > 0 && (e.PromptChunk == 0 || e.NewTokens == 0):
		return runner.Errorf(runner.Invalid, "check evaluation: want chunks and new tokens above 0, got %+v", e)
	}
	return nil
}

// resume takes over what an earlier life left: nothing is decided until an
// image was found (restore.go).
func (c *Core) resume(r *Resume) error {
	c.lineage = max(1, r.Lineage)
	for _, a := range r.Arranged {
		if err := c.planner.Feed(a.Epoch, a.Samples); err != nil {
			return runner.Errorf(runner.Invalid, "resume: feed the journal's samples: %w", err).
				WithHint("the data, its order or the step configuration changed since the run began; start a new run")
		}
	}
	for i, p := range r.Plans {
		if i > 0 && p.Plan.Step != r.Plans[i-1].Plan.Step+1 {
			return runner.Errorf(runner.Invalid, "resume: plans: want step %d after step %d, got %d", r.Plans[i-1].Plan.Step+1, r.Plans[i-1].Plan.Step, p.Plan.Step)
		}
		if len(p.Plan.Rows) != len(c.ranks) {
			return runner.Errorf(runner.Invalid, "resume: plan of step %d: want rows for %d drafters, got %d", p.Plan.Step, len(c.ranks), len(p.Plan.Rows)).
				WithHint("resume with as many drafters as the run began with")
		}
		c.plans = append(c.plans, newPlan(p))
		c.planned = p.Plan.Step
	}
	c.planned = max(c.planned, r.Committed)
	for n := runner.Step(0); n < c.planned; n++ { // the planner goes past what is planned already
		if _, ok := c.planner.Next(); !ok {
			return runner.Errorf(runner.Invalid, "resume: the journal plans %d steps, its samples give %d", c.planned, n)
		}
	}
	c.restore.wanted = true
	c.decided = r.Committed
	c.takeCheckpoints(r)
	c.takeFigures(r)
	return nil
}
