package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/bench"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func (c *cli) benchCommand() *cobra.Command {
	cmd := c.group("bench", "Measure what is promised in numbers",
		"Measures what is promised in numbers, each beside a plain baseline in the same run: a table, and one\n"+
			"line of JSON after it. The figures mean something on an idle machine alone; the load is in the result.\n"+
			"What was found so far is in python/bench/LOG.md.")
	cmd.Example = "  dflash-runner bench step --profile\n  dflash-runner bench handoff --json"
	cmd.AddCommand(c.benchDispatchCommand(), c.benchHandoffCommand(), c.benchRunCommand(), c.benchStepCommand(), c.benchPeerCommand(), c.benchWarmUpCommand(), c.benchPipelineCommand(),
		c.benchSchedulerCommand(), c.benchSchedulerPlugin())
	return cmd
}

func (c *cli) benchDispatchCommand() *cobra.Command {
	var interpreter string
	samples := 5000
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "dispatch",
		Short: "Order to reply of an idle worker, beside a bare ping-pong",
		Long: "Starts a real drafter worker on a tiny random target, up to its certificate, and measures the time from an\n" +
			"order to its reply through the lane and the worker's main thread, one in flight; in turns with packets of the\n" +
			"same size through a bare socket to a minimal Python process and back.",
		Example: "  dflash-runner bench dispatch --samples 5000",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if samples < 100 {
				return usage("bench dispatch: --samples: want at least 100, got %d", samples)
			}
			return c.bench(cmd.Context(), interpreter, func(ctx context.Context, p *bench.Python) (*bench.Report, error) {
				return bench.Dispatch(ctx, p, samples, c.err)
			})
		},
	})
	cmd.Flags().IntVar(&samples, "samples", samples, "orders and packets to measure")
	pythonFlag(cmd, &interpreter)
	return cmd
}

func (c *cli) benchRunCommand() *cobra.Command {
	over := 10 * time.Second
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "run [RUN]",
		Short: "What the supervisor of a run costs",
		Long: "Of a run that is over: the supervisor's CPU time for each committed row, its peak memory, and the time before\n" +
			"training. Of a live run: its share of a core over a while, its peak memory, and the time that `status` takes.",
		Example: "  dflash-runner bench run cpu-tiny\n  dflash-runner bench run --over 30s --json",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			r, err := c.measureRun(cmd.Context(), dir, over)
			if err != nil {
				return err
			}
			return c.printBench(r)
		},
	})
	cmd.Flags().DurationVar(&over, "over", over, "how long to watch a live run")
	return cmd
}

// measureRun looks at the run in a directory.
func (c *cli) measureRun(ctx context.Context, dir string, over time.Duration) (*bench.Report, error) {
	shot, err := admin.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	if shot.Client == nil {
		s, err := admin.ReadSummary(dir)
		if err != nil {
			return nil, err
		}
		first, err := bench.FirstStep(ctx, filepath.Join(dir, "events.jsonl"), s.StartedAt)
		if err != nil {
			return nil, err
		}
		return bench.Finished(s, first)
	}
	if over < time.Second {
		return nil, usage("bench run: --over: want at least 1s, got %s", over)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "find this program: %w", err)
	}
	return bench.Live(ctx, shot.Status, over, self)
}

func pythonFlag(cmd *cobra.Command, interpreter *string) {
	cmd.Flags().StringVar(interpreter, "python", "", "an existing Python that has all packages (default: our own environment)")
}

// bench measures with a Python of the workers and prints the report.
func (c *cli) bench(ctx context.Context, interpreter string, measure func(context.Context, *bench.Python) (*bench.Report, error)) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p, err := bench.Open(ctx, interpreter, c.tell)
	if err != nil {
		return err
	}
	defer p.Close()
	r, err := measure(ctx, p)
	if err != nil {
		return err
	}
	return c.printBench(r)
}

// printBench prints a table and a line of JSON, or the line alone.
func (c *cli) printBench(r *bench.Report) error {
	r.Commit = describe().Commit
	if !c.json {
		if err := r.Write(c.out); err != nil {
			return runner.Errorf(runner.Unavailable, "print result: %w", err)
		}
	}
	line, err := json.Marshal(r)
	if err != nil {
		return runner.Errorf(runner.Internal, "print result: %w", err)
	}
	return c.print("%s\n", line)
}
