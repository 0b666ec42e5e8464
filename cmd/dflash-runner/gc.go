package main

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/cache"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

func (c *cli) gcCommand() *cobra.Command {
	var dry bool
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "gc",
		Short: "Remove what crashes left behind",
		Long: "Removes what crashes left behind: sockets that nobody answers, directories of sockets whose process is\n" +
			"proved to be gone, also those of earlier versions in which every socket is dead or that are older than\n" +
			"this boot, and cache entries that were never finished. Runs, checkpoints and logs are never touched.\n" +
			"Prints what was removed, and on stderr what was left alone since nobody can say whose it is.",
		Example: "  dflash-runner gc --dry-run",
		Args:    atMost(0),
		RunE: func(*cobra.Command, []string) error {
			root, err := pyenv.DefaultCacheDir()
			if err != nil {
				return err
			}
			runtime, err := admin.RuntimeDirectory()
			if err != nil {
				return err
			}
			owned, err := admin.OwnedDirectories(runtime)
			if err != nil {
				return err
			}
			paths := cache.Leftovers(root, runtime, time.Now())
			for _, o := range owned {
				if o.Dead {
					paths = append(paths, o.Path)
				} else if !slices.Contains(paths, o.Path) {
					c.tell("left alone", o.Path+": "+o.Why)
				}
			}
			return c.removeAll(paths, dry)
		},
	})
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only print what would be removed")
	return cmd
}

// removeAll removes leftovers and prints those that are gone.
func (c *cli) removeAll(paths []string, dry bool) error {
	gone := []string{}
	for _, path := range paths {
		if !dry {
			if err := os.RemoveAll(path); err != nil {
				c.complain(runner.Errorf(runner.Unavailable, "remove leftover: %w", err))
				c.code = runner.ExitFailed
				continue
			}
		}
		gone = append(gone, path)
	}
	if c.json {
		return c.printJSON(gone)
	}
	for _, path := range gone {
		if err := c.print("%s\n", path); err != nil {
			return err
		}
	}
	return nil
}

// runDirectories lists the directories of runs.
func runDirectories(root string) (dirs []string) {
	found, err := filepath.Glob(filepath.Join(root, "*", admin.StatusFile))
	if err != nil {
		return nil // the pattern is bad: a directory named like one
	}
	for _, f := range found {
		dirs = append(dirs, filepath.Dir(f))
	}
	return dirs
}
