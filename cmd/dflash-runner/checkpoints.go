package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// checkpointFacts is a line of `checkpoints list --json`.
type checkpointFacts struct {
	Name    string         `json:"name"`
	Step    runner.Step    `json:"step"`
	Lineage runner.Lineage `json:"lineage"`
	Bytes   uint64         `json:"bytes"`
	Written string         `json:"written"`
	Best    bool           `json:"best"`
	State   string         `json:"state"` // ok, not compared, removed, or what is wrong with it
}

func (c *cli) checkpointsCommand() *cobra.Command {
	cmd := c.group("checkpoints", "Show, prove and prune a run's checkpoints", "Shows, proves and prunes a run's checkpoints.")
	cmd.Example = "  dflash-runner checkpoints list\n  dflash-runner checkpoints verify cpu-tiny"
	cmd.AddCommand(c.checkpointsList(false), c.checkpointsList(true), c.checkpointsPrune())
	return cmd
}

// checkpointsList lists checkpoints; with proof it reads every byte of them.
func (c *cli) checkpointsList(proof bool) *cobra.Command {
	use, short := "list [RUN]", "List checkpoints"
	long := "Lists the checkpoints of a run. Digests are not compared: `checkpoints verify` does that."
	if proof {
		use, short = "verify [RUN]", "Prove checkpoints against their digests"
		long = "Reads every checkpoint of a run and compares it with its digests. Exit 1 where one is broken."
	}
	return c.jsonFlag(&cobra.Command{
		Use: use, Short: short, Long: long, Example: "  dflash-runner checkpoints " + strings.Fields(use)[0] + " cpu-tiny --json", Args: atMost(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			all, err := checkpointsOf(dir)
			if err != nil {
				return err
			}
			facts := []checkpointFacts{}
			for _, p := range all {
				f := factsOf(dir, p)
				if proof {
					f.State = c.proved(p)
				}
				facts = append(facts, f)
			}
			return c.printCheckpoints(facts)
		},
	})
}

// proved compares a checkpoint with its digests: ok, or what is wrong with it,
// which sets the exit code.
func (c *cli) proved(p image.Checkpoint) string {
	err := p.Err
	if err == nil {
		_, err = image.Verify(p.Path)
	}
	if err == nil {
		return "ok"
	}
	c.code = runner.ExitFailed
	return err.Error()
}

// checkpointsOf lists a run's checkpoints; a run that has none yet has an empty list.
func checkpointsOf(dir string) ([]image.Checkpoint, error) {
	path := filepath.Join(dir, "checkpoints")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return image.List(path)
}

func factsOf(dir string, p image.Checkpoint) checkpointFacts {
	f := checkpointFacts{Name: p.Name, Step: p.Facts.Step, Lineage: p.Facts.Lineage, Bytes: p.Facts.Bytes, Written: p.Facts.Written, Best: p.Name == best(dir), State: "not compared"}
	if p.Err != nil {
		f.State = p.Err.Error()
	}
	return f
}

// best names the best checkpoint by held-out loss, if one was named.
func best(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, "checkpoints", "best"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (c *cli) printCheckpoints(all []checkpointFacts) error {
	if c.json {
		return c.printJSON(all)
	}
	for _, f := range all {
		mark := ""
		if f.Best {
			mark = "  best"
		}
		if err := c.print("%-16s step %-8d lineage %-3d %8d KiB  %s  %s%s\n", f.Name, f.Step, f.Lineage, f.Bytes>>10, f.Written, f.State, mark); err != nil {
			return err
		}
	}
	return nil
}

// chooseCheckpoint gives the named checkpoint, the best, or the newest.
func chooseCheckpoint(dir, name string) (image.Checkpoint, error) {
	all, err := checkpointsOf(dir)
	if err != nil {
		return image.Checkpoint{}, err
	}
	if name == "best" {
		name = best(dir)
	}
	names := []string{}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Name == name || name == "" && all[i].Err == nil {
			return all[i], all[i].Err
		}
		names = append(names, all[i].Name)
	}
	if len(names) == 0 {
		return image.Checkpoint{}, runner.Errorf(runner.NotFound, "find checkpoint in %s: there is none", dir).
			WithHint("the run has published none yet; checkpoints.every_steps says when it does")
	}
	return image.Checkpoint{}, runner.Errorf(runner.NotFound, "find checkpoint %q in %s: there is none", name, dir).WithHint("there are: %s", strings.Join(names, ", "))
}

func (c *cli) checkpointsPrune() *cobra.Command {
	var keep int
	cmd := c.jsonFlag(&cobra.Command{
		Use:     "prune [RUN]",
		Short:   "Remove old checkpoints of a run that is not live",
		Long:    "Removes checkpoints of a run that is not live, but for the newest and the best. Prints what was removed.",
		Example: "  dflash-runner checkpoints prune cpu-tiny --keep 1",
		Args:    atMost(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if keep < 1 {
				return usage("prune checkpoints: want --keep of at least 1, got %d", keep).
					WithHint("--keep 1 leaves the newest; the best by held-out loss is kept besides")
			}
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			if s, err := admin.ReadStatus(dir); err == nil && !s.State.Over() {
				return runner.Errorf(runner.Unavailable, "prune checkpoints: run %s is live", s.Name).WithHint("it prunes by itself: checkpoints.keep_last")
			}
			return c.prune(dir, keep)
		},
	})
	cmd.Flags().IntVar(&keep, "keep", 1, "how many of the newest to keep")
	return cmd
}

func (c *cli) prune(dir string, keep int) error {
	all, err := checkpointsOf(dir)
	if err != nil {
		return err
	}
	gone := []checkpointFacts{}
	for _, name := range image.Keep(all, keep, best(dir)) {
		if err := image.Remove(filepath.Join(dir, "checkpoints"), name); err != nil {
			return err
		}
		for _, p := range all {
			if p.Name == name {
				f := factsOf(dir, p)
				f.State = "removed"
				gone = append(gone, f)
			}
		}
	}
	return c.printCheckpoints(gone)
}
