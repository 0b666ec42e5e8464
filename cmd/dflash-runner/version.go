package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/runner"
)

// about is `version --json`.
type about struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Dirty   bool   `json:"dirty"`
	Go      string `json:"go"`
	System  string `json:"system"`
	Lane    int    `json:"lane_version"`
}

func (c *cli) versionCommand() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "version",
		Short:   "Show the version",
		Example: "  dflash-runner version --json",
		Args:    atMost(0),
		RunE: func(*cobra.Command, []string) error {
			a := describe()
			if c.json {
				return c.printJSON(a)
			}
			return c.print("dflash-runner %s (commit %s, %s, %s)\n", a.Version, a.Commit, a.Go, a.System)
		},
	})
}

// describe reads what the Go linker wrote down.
func describe() about {
	a := about{Version: "unknown", Commit: "unknown", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Lane: runner.LaneVersion}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return a
	}
	if info.Main.Version != "" {
		a.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			a.Commit = s.Value
		case "vcs.modified":
			a.Dirty = s.Value == "true"
		}
	}
	return a
}
