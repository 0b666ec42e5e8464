package main

import (
	"encoding/json"
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/view"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func (c *cli) eventsCommand() *cobra.Command {
	var follow bool
	var after uint64
	cmd := c.jsonFlag(&cobra.Command{
		Use:     "events [RUN]",
		Short:   "Show what happened in a run",
		Long:    "Shows what happened in a run, from its events.jsonl. With -f it goes on until the run ends.",
		Example: "  dflash-runner events -f\n  dflash-runner events cpu-tiny --json | jq -c 'select(.level != \"info\")'",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			path := filepath.Join(dir, "events.jsonl")
			for line, err := range admin.Tail(ctx, path, after, follow, func() bool { return over(dir) }) {
				if err != nil {
					return runner.Errorf(runner.NotFound, "read events: %w", err)
				}
				if err := c.print("%s\n", c.event(line)); err != nil {
					return err
				}
			}
			if follow {
				c.noteLost(dir)
			}
			return nil
		},
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more, until the run ends")
	cmd.Flags().Uint64Var(&after, "after", 0, "leave out the first N events")
	return cmd
}

// over reports whether nothing will be written in a run's directory any more.
func over(dir string) bool {
	s, err := admin.ReadStatus(dir)
	return err == nil && s.State.Over()
}

// noteLost says that what was followed ended without the run's own end.
func (c *cli) noteLost(dir string) {
	if s, err := admin.ReadStatus(dir); err == nil && s.State == admin.Lost {
		c.tell("note", "the run's process is gone and wrote no end: nothing will follow")
	}
}

// event writes a line of events.jsonl for people, or as it is.
func (c *cli) event(line []byte) string {
	var e runner.Event
	if c.json || json.Unmarshal(line, &e) != nil {
		return string(line)
	}
	parts := []string{e.At.Local().Format("15:04:05.000"), fmt.Sprintf("%-5s", e.Level)}
	if e.Worker != nil {
		parts = append(parts, fmt.Sprintf("%s.%d", e.Worker, e.Generation))
	}
	parts = append(parts, e.Name)
	if e.Step > 0 {
		parts = append(parts, fmt.Sprintf("step %d", e.Step))
	}
	if e.Message != "" {
		parts = append(parts, e.Message)
	}
	if e.Hint != "" {
		parts = append(parts, "("+e.Hint+")")
	}
	return view.OneLine(strings.Join(parts, " "))
}
