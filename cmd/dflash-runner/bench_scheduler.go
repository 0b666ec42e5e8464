package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/bench"
	"github.com/dflash-runner/dflash-runner/runner"
)

func (c *cli) benchSchedulerCommand() *cobra.Command {
	var interpreter string
	o := bench.Scheduling{Calls: 2000, Rounds: 1}
	o.Run.Steps = 40
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "scheduler [PATH]",
		Short: "What a scheduling plugin's answers take, and what they cost a run",
		Long: "Asks a plugin for targets and samples, one question at a time, and then runs `up` on CPU workers without it and\n" +
			"with it, in turns: a target of random weights, two targets, so that every row is asked about where both are free.\n" +
			"A Python script runs with the workers' Python. Without PATH the plugin is this program, deciding as the built-in\n" +
			"does: what is seen is the asking alone." + benchExits,
		Example: "  dflash-runner bench scheduler\n  dflash-runner bench scheduler ./my_plugin.py --rounds 3 --json",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch {
			case o.Run.Steps < 2:
				return usage("bench scheduler: --steps: want at least 2, got %d", o.Run.Steps)
			case o.Calls < 100:
				return usage("bench scheduler: --calls: want at least 100, got %d", o.Calls)
			case o.Rounds < 1:
				return usage("bench scheduler: --rounds: want at least 1, got %d", o.Rounds)
			case len(args) > 0:
				o.Plugin = args[0]
			case len(o.Args) > 0:
				return usage("bench scheduler: --arg: want a PATH that takes it")
			}
			if o.Run.Self, err = os.Executable(); err != nil {
				return runner.Errorf(runner.Internal, "find this program: %w", err)
			}
			o.Run.Stderr = c.err
			return c.bench(cmd.Context(), interpreter, func(ctx context.Context, p *bench.Python) (*bench.Report, error) {
				return bench.SchedulerBench(ctx, p, o)
			})
		},
	})
	cmd.Flags().StringArrayVar(&o.Args, "arg", nil, "argument of the program; may be given again")
	cmd.Flags().StringArrayVar(&o.Run.Set, "set", nil, "path=value, over the configuration of both runs; may be given several times")
	cmd.Flags().IntVar(&o.Run.Steps, "steps", o.Run.Steps, "to train in each run")
	cmd.Flags().IntVar(&o.Calls, "calls", o.Calls, "questions of each kind")
	cmd.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "runs without and with the plugin")
	pythonFlag(cmd, &interpreter)
	return cmd
}

// benchSchedulerPlugin is the plugin that `bench scheduler` starts.
func (c *cli) benchSchedulerPlugin() *cobra.Command {
	return &cobra.Command{Use: bench.FirstCommand[1], Hidden: true, Short: "The plugin that bench scheduler starts", Example: "  dflash-runner bench scheduler", Args: atMost(0),
		Run: func(*cobra.Command, []string) { bench.ServeFirst() }}
}
