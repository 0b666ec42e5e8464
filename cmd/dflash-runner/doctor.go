package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/doctor"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// report is `doctor --json`.
type report struct {
	Status doctor.Status  `json:"status"` // the worst of the checks
	Checks []doctor.Check `json:"checks"`
}

func (c *cli) doctorCommand() *cobra.Command {
	var from source
	cmd := c.jsonFlag(&cobra.Command{
		Use:     "doctor",
		Short:   "Check whether this machine can run a configuration",
		Long:    "Checks Python, GPUs, memory, limits, disks, the clock and the files of the plugin that is used, for a\nconfiguration, each line ok, warn or fail. Exit 3 where one fails.",
		Example: "  dflash-runner doctor\n  dflash-runner doctor -f my.yaml --json",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := c.load(cmd, from)
			if err != nil {
				return err
			}
			r, needs, err := c.read(cmd.Context(), loaded)
			if err != nil {
				return err
			}
			if err := needs.PlacementErr; err != nil && runner.KindOf(err) == runner.Unavailable && r.GPUErr == nil {
				needs.ArenaErr = err // else the other checks say what is missing
			}
			return c.printReport(doctor.Judge(r, needs))
		},
	})
	from.flags(cmd)
	return cmd
}

// read looks at the machine, for a configuration.
func (c *cli) read(ctx context.Context, loaded *config.Config) (doctor.Readings, doctor.Needs, error) {
	needs := doctor.Needs{GPU: loaded.Workers.Device == "cuda", PluginRequired: loaded.Scheduler.Required == "true"}
	if p, _ := loaded.Scheduler.Plugin(); p != nil {
		needs.Plugin = p.Name
		if wrong := pluginProblem(loaded); wrong != nil {
			needs.PluginErr = runner.Errorf(runner.Invalid, "%s", wrong).WithHint("%s", wrong.Hint)
		}
	}
	cache, err := pyenv.DefaultCacheDir()
	if err != nil {
		return doctor.Readings{}, needs, err
	}
	sockets, err := admin.RuntimeDirectory()
	if err != nil {
		return doctor.Readings{}, needs, err
	}
	p, err := c.plan(ctx, loaded)
	switch {
	case err != nil && !needs.GPU:
		return doctor.Readings{}, needs, err
	case err != nil:
		needs.PlacementErr = err
	default:
		needs.MemoryBytes, needs.Placement = p.MemoryBytes, placesOf(p)
		needs.ArenaKind, needs.ArenaReason = p.Arenas.Kind, p.Arenas.Reason
	}
	return doctor.Read(ctx, doctor.Options{Python: pyenv.Worker(cache, loaded.Python.Interpreter), RunDir: loaded.Run.Directory,
		CacheDir: cache, RuntimeDir: sockets}), needs, nil
}

// printReport prints the checks, and sets the exit code.
func (c *cli) printReport(checks []doctor.Check) error {
	r := report{Status: doctor.OK, Checks: checks}
	for _, check := range checks {
		if check.Status == doctor.Fail || check.Status == doctor.Warn && r.Status == doctor.OK {
			r.Status = check.Status
		}
	}
	if r.Status == doctor.Fail {
		c.code = runner.ExitPreflight
	}
	if c.json {
		return c.printJSON(r)
	}
	for _, check := range checks {
		if err := c.print("%-5s %-18s %s\n", check.Status, check.Name, check.Detail); err != nil {
			return err
		}
		if check.Hint != "" {
			if err := c.print("%24s hint: %s\n", "", check.Hint); err != nil {
				return err
			}
		}
	}
	return nil
}

// placesOf says in one line where a plan's workers run.
func placesOf(p plan.Plan) string {
	var out []string
	for _, w := range p.Workers {
		out = append(out, fmt.Sprintf("%s on %s", w.Name, p.Where(w.Device)))
	}
	return strings.Join(out, ", ")
}
