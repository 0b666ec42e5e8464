package main

import (
	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/view"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func (c *cli) statusCommand() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "status [RUN]",
		Short:   "Show where a run stands",
		Long:    "Shows where a run stands: the newest when none is named. A run that is over, or was killed,\nis shown as it was last, and a note on stderr says so.",
		Example: "  dflash-runner status\n  dflash-runner status cpu-tiny --json | jq .step",
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
			c.tell("note", shot.Note)
			if c.json {
				return c.printJSON(shot.Status)
			}
			return c.print("%s", view.Text(shot.Status))
		},
	})
}
