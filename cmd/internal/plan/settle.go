package plan

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// Settled is how balanced chose what a configuration leaves open.
type Settled struct {
	placement.Choice
	Costs  string  `json:"costs"` // where they come from
	Target float64 `json:"target_row_ms"`
	Draft  float64 `json:"drafter_row_ms"`
}

// A layout is tried for a few steps, of which the first do not count: slots and
// buffers fill in them. Images are left out, as they hold every layout up. So a
// choice takes milliseconds.
const (
	trialSteps = 11
	trialFrom  = 3
	trialRows  = 512 // at most, but for steps that are larger than that alone
)

// Settle gives c with the counts of workers that it leaves to the scheduler,
// and how they were chosen; with no count of auto it gives c itself. What is
// chosen is written as a configuration that says it: counts, and whether workers
// share GPUs.
func Settle(c *config.Config, target config.Model, m Machine, t simulate.Trace) (*config.Config, *Settled, error) {
	if c.Workers.Targets != config.Auto && c.Workers.Drafters != config.Auto {
		return c, nil, nil
	}
	w, err := workOf(c, target)
	if err != nil {
		return nil, nil, err
	}
	choice, err := w.balance(m, t).Choose(w.wanted(m, w.memory(w.onTarget())))
	if err != nil {
		return nil, nil, err
	}
	mean, out := t.Mean(), *c
	out.Workers.Targets, out.Workers.Drafters = config.Count(choice.Targets), config.Count(choice.Drafters)
	if w.cuda {
		out.Workers.Colocate = map[bool]string{true: "true", false: "false"}[choice.Paired]
	}
	return &out, &Settled{choice, t.Source, mean.TargetMS, mean.DrafterMS}, nil
}

// For is Make for a configuration that may leave counts to the scheduler; it
// gives the configuration with them as well. costs is the text that costs.from
// names.
func For(c *config.Config, target config.Model, m Machine, costs []byte) (Plan, *config.Config, error) {
	if c.Workers.Targets != config.Auto && c.Workers.Drafters != config.Auto {
		p, err := Make(c, target, m)
		return p, c, err
	}
	t, err := Costs(c, target, costs)
	if err != nil {
		return Plan{}, nil, err
	}
	settled, chosen, err := Settle(c, target, m, t)
	if err != nil {
		return Plan{}, nil, err
	}
	p, err := Make(settled, target, m)
	if err != nil {
		return Plan{}, nil, err
	}
	p.Chosen = chosen
	p.Notes = append(p.Notes, chosen.note())
	p.Notes = append(p.Notes, chosen.Notes...)
	return p, settled, nil
}

// note says what was chosen, and by what.
func (s Settled) note() string {
	return fmt.Sprintf("chosen: %s, for %.1f rows a second, predicted from costs of %.1f ms a row made and %.1f ms a row trained: %s", s.Layout, s.Rate, s.Target, s.Draft, s.Costs)
}

// onTarget is what a target uses, its arena on its own GPU where that may be.
func (w work) onTarget() placement.Use {
	u := placement.Use{Element: bytesOf(w.config.Target.DType), CUDA: w.cuda}
	if w.cuda && w.config.Arenas.Kind != runner.ArenaMemfd {
		u.Slots = placement.OnDevice(uint64(w.config.Workers.Slots) * w.rows.SlotBytes)
	}
	return u
}

// balance asks the simulator about layouts of this machine.
func (w work) balance(m Machine, t simulate.Trace) placement.Balance {
	t.Costs.ImageEvery = 0
	of := func(l placement.Layout) simulate.Setup {
		s := w.layout(l, m, t)
		s.Steps = max(trialFrom+1, min(trialSteps, trialRows/s.RowsPerStep))
		return s
	}
	return placement.Balance{RowsPerStep: w.config.Training.RowsPerStep,
		Bound: func(l placement.Layout) float64 {
			s := of(l)
			return s.RateBound()
		},
		Rate: func(l placement.Layout) (float64, error) {
			r, err := simulate.Run(of(l))
			if err != nil {
				return 0, err
			}
			return r.SteadyRowsPerS(trialFrom), nil
		}}
}

// layout is a setup of one node with a layout's workers.
func (w work) layout(l placement.Layout, m Machine, t simulate.Trace) simulate.Setup {
	s := simulate.Setup{Trace: t, Nodes: 1, Slots: w.config.Workers.Slots, RowsPerStep: placement.Multiple(w.config.Training.RowsPerStep, l.Drafters)}
	devices := max(1, len(m.GPUs))
	if !w.cuda {
		devices = 1
	}
	for range devices {
		s.Turns = append(s.Turns, w.turns(m))
	}
	at := func(rank int, after int) int {
		switch {
		case !w.cuda:
			return 0
		case l.Paired:
			return rank
		}
		return after + rank
	}
	for i := range l.Targets {
		s.Workers = append(s.Workers, simulate.Worker{Worker: runner.Worker{Role: runner.Target, Rank: runner.Rank(i)}, Device: at(i, 0)})
	}
	for i := range l.Drafters {
		s.Workers = append(s.Workers, simulate.Worker{Worker: runner.Worker{Role: runner.Drafter, Rank: runner.Rank(i)}, Device: at(i, l.Targets)})
	}
	return s
}

// turns is how many workers compute at once on a device, as placement has it.
func (w work) turns(m Machine) int {
	c := w.config.Workers
	switch {
	case c.Turns > 0:
		return c.Turns
	case w.cuda:
		return 1
	}
	return max(1, m.Cores/max(1, c.Threads))
}
