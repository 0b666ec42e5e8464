package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func (c *cli) downCommand() *cobra.Command {
	var quick, noWait bool
	var timeout time.Duration
	cmd := c.jsonFlag(&cobra.Command{
		Use:     "down [RUN]",
		Short:   "End a run",
		Long:    "Ends a run after a checkpoint, or at once with --quick, and waits until nothing of it runs.",
		Example: "  dflash-runner down\n  dflash-runner down cpu-tiny --quick",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			shot, err := admin.Open(cmd.Context(), dir)
			if err != nil {
				return err
			}
			ran := !shot.State.Over()
			if ran {
				if shot.Client == nil {
					return runner.Errorf(runner.Unavailable, "end run %s: %s", shot.Name, shot.Note).
						WithHint("if pid %d hangs: kill it; nothing that it started outlives it", shot.Process.Pid)
				}
				if shot.Status, err = c.end(cmd.Context(), dir, shot, quick, noWait, timeout); err != nil {
					return err
				}
			}
			return c.reportEnd(shot.Status, ran)
		},
	})
	cmd.Flags().BoolVar(&quick, "quick", false, "do not wait for a checkpoint")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return as soon as the run was asked")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for the end")
	return cmd
}

// end asks the run and waits for its end.
func (c *cli) end(ctx context.Context, dir string, shot admin.Snapshot, quick, noWait bool, timeout time.Duration) (admin.Status, error) {
	mode := admin.Graceful
	if quick {
		mode = admin.Quick
	}
	if err := shot.Client.Stop(ctx, mode); err != nil {
		return shot.Status, err
	}
	if noWait {
		return shot.Client.Status(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return shot.Status, runner.Errorf(runner.Unavailable, "end run %s: it was asked and still runs after %s", shot.Name, timeout).
				WithHint("`dflash-runner down %s --quick` ends it at once", shot.Name+c.runsFlag())
		case <-tick.C:
		}
		// over is said by the file, gone by the process: both are wanted
		if s, err := admin.ReadStatus(dir); err == nil && s.State.Over() && s.Process.Look() != admin.Alive {
			tick.Stop()
			return s, nil
		}
	}
}

// reportEnd prints how the run stands now; ran says that it ran before.
func (c *cli) reportEnd(s admin.Status, ran bool) error {
	if c.json {
		return c.printJSON(s)
	}
	what := fmt.Sprintf("is %s", s.State)
	switch {
	case s.State == admin.Lost:
		what = "is not running: its process is gone and wrote no end"
	case s.State == admin.Ended && s.Exit != nil && ran:
		what = fmt.Sprintf("has ended now, with exit %d at step %d", *s.Exit, s.Step)
	case s.State == admin.Ended && s.Exit != nil:
		what = fmt.Sprintf("is not running: ended with exit %d at step %d", *s.Exit, s.Step)
	}
	return c.print("run %s %s\n", s.Name, what)
}
