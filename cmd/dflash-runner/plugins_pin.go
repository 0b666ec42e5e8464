package main

import (
	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/skeleton"
	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
)

func (c *cli) pluginsPin() *cobra.Command {
	var from source
	cmd := c.jsonFlag(&cobra.Command{
		Use: "pin [NAME]", Short: "Pin a configuration's plugins as they are now", Args: atMost(1), Example: "  dflash-runner plugins pin -f my.yaml",
		Long: "Writes the sha256 of every file of the plugins that a configuration names into it, in place of the one that stands\n" +
			"there; nothing else of the file changes. Say so only of files that you know: a run starts what is pinned.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if from.file == "" {
				return lacking(cmd, "plugins pin: want -f with a file to write, got none")
			}
			loaded, err := c.load(cmd, from)
			if err != nil {
				return err
			}
			sums, all := map[string]string{}, []skeleton.Pin{}
			for _, p := range loaded.Scheduler.Plugins {
				if len(args) > 0 && args[0] != p.Name {
					continue
				}
				e := up.Catalog(p)
				for _, f := range append([]host.File{e.Program, e.Interpreter}, e.Files...) {
					if f.Path == "" || f.SHA256 == "" {
						continue
					}
					sum, err := host.Sum(f.Path)
					if err != nil {
						return err
					}
					if before, twice := sums[f.SHA256]; twice && before != sum {
						return runner.Errorf(runner.Invalid, "pin %s: another file has the same sha256 in the configuration, and they differ", f.Path).
							WithHint("give one of them the sum that `dflash-runner plugins describe` prints, by hand")
					}
					sums[f.SHA256] = sum
					all = append(all, skeleton.Pin{Name: p.Name, Path: f.Path, Was: f.SHA256, SHA256: sum})
				}
			}
			if len(all) == 0 {
				return runner.Errorf(runner.NotFound, "pin plugins: want a plugin in %s, found none", from.file).WithHint("`dflash-runner plugins list -f %s` shows what it names", from.file)
			}
			if err := skeleton.Repin(from.file, sums); err != nil {
				return err
			}
			return c.printPins(all)
		},
	})
	from.flags(cmd)
	return cmd
}

func (c *cli) printPins(all []skeleton.Pin) error {
	if c.json {
		return c.printJSON(all)
	}
	for _, p := range all {
		what := "pinned"
		if p.Was == p.SHA256 {
			what = "as it was"
		}
		if err := c.print("%-24s %-9s  %s  %s\n", p.Name, what, p.SHA256, p.Path); err != nil {
			return err
		}
	}
	return nil
}
