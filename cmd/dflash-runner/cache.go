package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/cache"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

func (c *cli) cacheCommand() *cobra.Command {
	cmd := c.group("cache", "Show and clear what is kept outside of runs",
		"Shows and clears what is kept outside of runs: the Python environment, built targets, prepared data\nand compiled kernels. All of it is made again when it is wanted.")
	cmd.Example = "  dflash-runner cache list\n  dflash-runner cache clear targets"
	cmd.AddCommand(c.cacheList(), c.cacheClear())
	return cmd
}

func (c *cli) cacheList() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use: "list", Short: "List the cache",
		Long: "Lists the cache, with the place that each entry takes on the disk. A file with several names counts once in\n" +
			"its entry; what also has a name elsewhere, as in an installer's own cache, is counted and named: removing\n" +
			"the entry does not free that part.",
		Example: "  dflash-runner cache list --json", Args: atMost(0),
		RunE: func(*cobra.Command, []string) error {
			root, entries, err := cached()
			if err != nil {
				return err
			}
			c.noteLinks(root)
			if c.json {
				return c.printJSON(entries)
			}
			return c.printEntries(entries)
		},
	})
}

// noteLinks names the kinds that are symbolic links: what lies behind them is
// used, but is neither listed nor removed.
func (c *cli) noteLinks(root string) {
	kinds, err := os.ReadDir(root)
	if err != nil {
		return // a cache that was never made; the list has said anything else
	}
	for _, kind := range kinds {
		if kind.Type()&fs.ModeSymlink != 0 {
			c.tell("note", filepath.Join(root, kind.Name())+" is a symbolic link: what lies behind it is neither listed nor removed")
		}
	}
}

// cached lists this user's cache.
func cached() (root string, entries []cache.Entry, err error) {
	if root, err = pyenv.DefaultCacheDir(); err != nil {
		return "", nil, err
	}
	entries, err = cache.List(root)
	if entries == nil {
		entries = []cache.Entry{}
	}
	return root, entries, err
}

func (c *cli) printEntries(entries []cache.Entry) error {
	for _, e := range entries {
		note := ""
		if e.Shared>>20 > 0 {
			note = fmt.Sprintf("  %d MiB also linked elsewhere", e.Shared>>20)
		}
		if e.InUse {
			note += "  in use"
		}
		if err := c.print("%-10s %-40s %8d MiB  %s%s\n", e.Kind, e.Name, e.Bytes>>20, e.Used.Format("2006-01-02 15:04"), note); err != nil {
			return err
		}
	}
	return nil
}

func (c *cli) cacheClear() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "clear [KIND ...]",
		Short:   "Remove what is cached, of all kinds or some",
		Long:    "Removes what is cached, of all kinds or of those named, and prints what was removed.\nWhat a process uses stays, and exit 1 says so; nothing is removed while a run is live.",
		Example: "  dflash-runner cache clear\n  dflash-runner cache clear targets data",
		RunE: func(_ *cobra.Command, kinds []string) error {
			if name := c.liveRun(); name != "" {
				return runner.Errorf(runner.Unavailable, "clear cache: run %s is live and may use it", name).WithHint("`dflash-runner down %s` ends it", name+c.runsFlag())
			}
			_, entries, err := cached()
			if err != nil {
				return err
			}
			if err := checkKinds(entries, kinds); err != nil {
				return err
			}
			removed := []cache.Entry{}
			for _, e := range entries {
				if len(kinds) > 0 && !contains(kinds, e.Kind) {
					continue
				}
				if err := cache.Remove(e); err != nil {
					c.complain(err)
					c.code = runner.ExitFailed
					continue
				}
				removed = append(removed, e)
			}
			if c.json {
				return c.printJSON(removed)
			}
			return c.printEntries(removed)
		},
	})
}

// checkKinds refuses a kind that the cache does not have: a typing error would
// look like success.
func checkKinds(entries []cache.Entry, kinds []string) error {
	known := []string{}
	for _, e := range entries {
		if !contains(known, e.Kind) {
			known = append(known, e.Kind)
		}
	}
	for _, k := range kinds {
		if !contains(known, k) {
			has := strings.Join(known, ", ")
			if has == "" {
				has = "nothing"
			}
			return usage("clear cache: want kinds that it has, got %q", k).WithHint("it has: %s", has)
		}
	}
	return nil
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// liveRun names a run that is live, if there is one.
func (c *cli) liveRun() string {
	for _, dir := range runDirectories(c.runs) {
		if s, err := admin.ReadStatus(dir); err == nil && !s.State.Over() {
			return s.Name
		}
	}
	return ""
}
