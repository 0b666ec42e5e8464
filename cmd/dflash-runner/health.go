package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func (c *cli) healthCommand() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "health [RUN]",
		Short:   "Judge how a run does",
		Long:    "Judges how a run does. Exit codes: 0 healthy, 1 degraded or unknown, 2 critical or not running.",
		Example: "  dflash-runner health\n  dflash-runner health cpu-tiny --json",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := c.judge(cmd, args)
			c.code = h.Exit()
			if err != nil {
				c.complain(err)
			}
			if c.json {
				return c.printJSON(h)
			}
			if err := c.print("%s\n", h.Status); err != nil {
				return err
			}
			for _, check := range h.Checks {
				if err := c.print("  %-12s %-9s %s\n", check.Name, check.Status, check.Detail); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// judge asks the run; one that cannot be found or opened is not running.
func (c *cli) judge(cmd *cobra.Command, args []string) (admin.Health, error) {
	dir, err := c.find(args, 0)
	if err == nil {
		var shot admin.Snapshot
		ctx, cancel := context.WithTimeout(cmd.Context(), admin.AnswerWithin)
		defer cancel()
		if shot, err = admin.Open(ctx, dir); err == nil {
			if shot.Client == nil && !shot.State.Over() {
				return admin.Silent(shot.Status), nil
			}
			return admin.Judge(shot.Status, time.Now()), nil
		}
	}
	grade := admin.Unknown
	if runner.KindOf(err) == runner.NotFound {
		grade = admin.Critical
	}
	return admin.Health{Status: grade, Checks: []admin.Check{{Name: "supervisor", Status: grade, Detail: err.Error()}}}, err
}
