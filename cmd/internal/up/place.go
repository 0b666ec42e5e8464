package up

import (
	"context"
	"errors"
	"fmt"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/drive"
)

// place asks the plugin where workers run, if it says so, before any of them
// starts. What is late, bad or missing leaves them where the built-in put them,
// and the run is degraded.
func (u *up) place(ctx context.Context) {
	if u.plugin == nil || !u.plugin.Can(scheduler.Place) {
		u.decided(decidedPlace, decidedBuiltin, u.placedAs())
		return
	}
	name, by := u.plugin.State().Name, decidedBuiltin
	if err := u.askPlace(ctx); err != nil {
		u.answers.fallbacks.Add(1)
		u.warn(schedulerSubject, fmt.Sprintf("plugin %s does not place: %v; workers are where the built-in puts them", name, err))
	} else {
		u.answers.used.Add(1)
		by = name
	}
	u.decided(decidedPlace, by, u.placedAs())
	u.note("placement", u.placedAs())
}

// askPlace asks, and moves the plan to the answer.
func (u *up) askPlace(ctx context.Context) error {
	by, err := u.placing()
	if err != nil {
		return err
	}
	moved, err := by.Ask(ctx, u.plugin)
	if errors.Is(err, host.ErrAbsent) {
		return errors.New("it ended before it was asked")
	}
	if err == nil {
		u.plan = moved
	}
	return err
}

// placing is what this run's plugin is asked to place by.
func (u *up) placing() (Placing, error) {
	p := Placing{Config: u.config, Plan: u.plan, Machine: u.has, GPUs: u.gpus}
	target, err := machine.Target(u.config)
	if err != nil {
		return p, err
	}
	var text []byte
	if from := u.config.Costs.From; from != "" {
		if text, err = machine.Trace(from, u.config.Place("costs.from")+": costs.from"); err != nil {
			return p, err
		}
	}
	p.Costs, err = plan.Costs(u.config, target, text)
	return p, err
}

// devices gives the GPUs that workers may run on, with what is known of them.
func (u *up) devices() []scheduler.Device {
	return Placing{Machine: u.has, GPUs: u.gpus}.devices()
}

// peers reports whether two GPUs read one another's memory.
func (u *up) peers(a, b string) bool { return u.has.Links.Peer(a, b) }

// placement names each worker's device as the manifest does.
func (u *up) placement() map[string]string {
	at := map[string]string{}
	for _, w := range u.plan.Workers {
		at[w.Name.String()] = w.Device
	}
	return at
}

// placedAs says in words where workers run.
func (u *up) placedAs() (said string) {
	for i, w := range u.plan.Workers {
		if i > 0 {
			said += ", "
		}
		said += fmt.Sprintf("%s on %s", w.Name, u.plan.Where(w.Device))
	}
	return said
}

// builtin is the built-in scheduler under the name that the configuration
// chooses it by; beside a plugin that is the default's.
type builtin struct {
	drive.Fixed
	name string
}

// Name gives "balanced" or "fixed".
func (b builtin) Name() string { return b.name }

// builtinFor gives the built-in of a run. Both arrange and assign alike: balanced
// has chosen the counts of workers before, where that was left to it.
func builtinFor(c *config.Config, fixed drive.Fixed) builtin {
	if c.Scheduler.Use == config.Fixed {
		return builtin{fixed, config.Fixed}
	}
	return builtin{fixed, config.Balanced}
}
