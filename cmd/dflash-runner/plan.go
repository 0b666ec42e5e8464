package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// planFlags are the flags of `plan`.
type planFlags struct {
	fit, simulate                  bool
	trace, svg, machine, scheduler string
	steps                          int
}

func (c *cli) planCommand() *cobra.Command {
	var from source
	var flags planFlags
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "plan",
		Short: "Show placement, memory, shapes and the time to the first step; start nothing",
		Long: "Shows what a configuration will take on this machine: which worker runs where, memory, slots, shapes,\n" +
			"and an estimate of when the first step will be done. It starts no worker. Exit 3 where it does not fit.\n" +
			"With --fit it chooses the longest bucket and the most anchors that fit, and prints the keys to change.\n" +
			"With --simulate it runs the steps on costs instead of workers: a trace's, the configuration's, or reckoned ones,\n" +
			"and prints speed, idle time by cause, a chart, and every way to divide a node. All of that is predicted.\n" +
			"With --machine it plans for a machine that a file describes, with --scheduler as that scheduler would decide: a\n" +
			"plugin is started and asked about the rows of the costs, and what it does otherwise than the built-in is shown.",
		Example: "  dflash-runner plan -f my.yaml\n  dflash-runner plan --json | jq .arenas\n  dflash-runner plan -f my.yaml --fit\n" +
			"  dflash-runner plan -f my.yaml --simulate --machine eight.json --trace synthetic:1 --svg chart.svg",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := c.load(cmd, from)
			if err != nil {
				return err
			}
			if err := flags.check(cmd, loaded); err != nil {
				return err
			}
			if flags.fit {
				return c.fit(cmd.Context(), loaded, flags)
			}
			return c.planned(cmd.Context(), loaded, flags)
		},
	})
	from.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&flags.fit, "fit", false, "choose the longest bucket and the most anchors that fit")
	f.BoolVar(&flags.simulate, "simulate", false, "run the steps on costs instead of workers, and predict their speed")
	f.StringVar(&flags.trace, "trace", "", "costs to simulate on, or to ask a scheduler about: a trace, a run's summary.json, or synthetic:SEED")
	f.StringVar(&flags.svg, "svg", "", "file to write the simulation's chart to")
	f.StringVar(&flags.machine, "machine", "", "file that describes the machine to plan for")
	f.StringVar(&flags.scheduler, "scheduler", "", "scheduler to decide as: balanced, fixed, or a plugin of the configuration")
	f.IntVar(&flags.steps, "steps", 20, "steps to simulate")
	return cmd
}

// check refuses flags that do not fit together.
func (f planFlags) check(cmd *cobra.Command, c *config.Config) error {
	switch {
	case f.fit && (f.simulate || f.scheduler != ""):
		return usage("plan: want --fit alone, got --simulate or --scheduler with it")
	case f.fit && (c.Workers.Targets == config.Auto || c.Workers.Drafters == config.Auto):
		return usage("plan --fit: want numbers for workers.targets and workers.drafters, got auto: plan without --fit chooses them")
	case !f.simulate && (f.trace != "" && f.scheduler == "" || f.svg != "" || cmd.Flags().Changed("steps")):
		return usage("plan: want --simulate with --trace, --svg and --steps, or --scheduler with --trace")
	case f.steps < 1 || f.steps > maxSimulated:
		return usage("--steps: want 1 to %d, got %d", maxSimulated, f.steps)
	case f.scheduler != "":
		return knownScheduler(c, f.scheduler)
	}
	return nil
}

// planned is a plan and what it was made from.
type planned struct {
	flags     planFlags
	config    *config.Config // with settled counts
	target    config.Model
	machine   plan.Machine
	nodes     int
	plan      plan.Plan
	scheduler *consulted // nil: none was named
}

// planned prints the plan, and what else the flags ask for.
func (c *cli) planned(ctx context.Context, loaded *config.Config, flags planFlags) error {
	if flags.scheduler == "" {
		c.refusedPlugin(loaded)
		return c.decided(ctx, loaded, flags, nil)
	}
	loaded.Scheduler.Use = flags.scheduler
	return c.consult(ctx, loaded, flags.scheduler, func(ctx context.Context, s *consulted) error { return c.decided(ctx, loaded, flags, s) })
}

// refusedPlugin tells where the files of the plugin that is used are refused: a run
// that requires it would not begin, another would go on with the built-in.
func (c *cli) refusedPlugin(loaded *config.Config) {
	wrong := pluginProblem(loaded)
	if wrong == nil {
		return
	}
	c.complain(config.Problems{*wrong})
	if loaded.Scheduler.Required == "true" {
		c.code = runner.ExitPreflight
		return
	}
	c.tell("note", "the built-in would decide alone")
}

// decided makes the plan as a scheduler decides, and prints it.
func (c *cli) decided(ctx context.Context, loaded *config.Config, flags planFlags, s *consulted) error {
	from := planned{flags: flags, scheduler: s}
	var err error
	if from.target, err = machine.Target(loaded); err != nil {
		return err
	}
	if from.machine, from.nodes, err = machineFor(ctx, loaded, flags.machine); err != nil {
		return err
	}
	costs, err := machine.Costs(loaded)
	if err != nil {
		return err
	}
	if from.plan, from.config, err = plan.For(loaded, from.target, from.machine, costs); err != nil {
		return err
	}
	if s != nil {
		t, err := costsOf(from.config, from.target, flags.trace)
		if err != nil {
			return err
		}
		from.plan = s.place(ctx, from.plan, from, t)
	}
	if p := from.plan; !p.Fits {
		c.code = runner.ExitPreflight
		c.complain(runner.Errorf(runner.Exhausted, "plan %s: want %d MiB of memory, got %d MiB", p.Name, p.MemoryBytes>>20, p.Available>>20).
			WithHint("use fewer slots, a smaller bucket or fewer workers; --fit chooses bucket and anchors"))
	}
	return c.showPlan(ctx, from)
}

// showPlan prints a plan with what a scheduler would do and what is predicted.
func (c *cli) showPlan(ctx context.Context, from planned) error {
	if c.json && !from.flags.simulate && from.scheduler == nil {
		return c.printJSON(from.plan)
	}
	if !c.json {
		if err := c.printPlan(from.plan); err != nil {
			return err
		}
		if from.scheduler == nil {
			if err := c.printScheduler(from.plan.Scheduler); err != nil {
				return err
			}
		}
	}
	return c.simulate(ctx, from)
}

// plan works out the plan for this machine.
func (c *cli) plan(ctx context.Context, loaded *config.Config) (plan.Plan, error) {
	target, err := machine.Target(loaded)
	if err != nil {
		return plan.Plan{}, err
	}
	m, err := machine.Read(ctx, loaded)
	if err != nil {
		return plan.Plan{}, err
	}
	costs, err := machine.Costs(loaded)
	if err != nil {
		return plan.Plan{}, err
	}
	p, _, err := plan.For(loaded, target, m.Machine, costs)
	return p, err
}

// machineFor gives the machine that a file describes, or this one.
func machineFor(ctx context.Context, c *config.Config, file string) (plan.Machine, int, error) {
	if file == "" {
		m, err := machine.Read(ctx, c)
		return m.Machine, 1, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return plan.Machine{}, 0, runner.Errorf(runner.Invalid, "--machine: %w", err).WithHint("give a file that describes a machine: format, name, nodes, cores, memory_bytes, gpus")
	}
	d, err := plan.ParseMachine(text)
	if err != nil {
		return plan.Machine{}, 0, fmt.Errorf("--machine %s: %w", file, err)
	}
	m, err := d.For(c)
	return m, d.Nodes, err
}

// fit prints the sizes that fit the machine.
func (c *cli) fit(ctx context.Context, loaded *config.Config, flags planFlags) error {
	target, err := machine.Target(loaded)
	if err != nil {
		return err
	}
	m, _, err := machineFor(ctx, loaded, flags.machine)
	if err != nil {
		return err
	}
	f, err := plan.Fit(loaded, target, m)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(f)
	}
	text := ""
	for _, change := range f.Changes {
		if err := c.print("%s: %s, was %s\n", change.Path, change.To, change.From); err != nil {
			return err
		}
		text += " --set " + change.Path + "=" + change.To
	}
	if text == "" {
		text = " nothing to change"
	}
	if err := c.print("fit:%s\n", text); err != nil {
		return err
	}
	return c.printPlan(f.Plan)
}
