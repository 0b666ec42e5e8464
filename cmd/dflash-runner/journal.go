package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

func (c *cli) journalCommand() *cobra.Command {
	cmd := c.group("journal", "Show and prove a run's journal", "Shows and proves a run's journal: what was planned, decided and settled.")
	cmd.Example = "  dflash-runner journal verify\n  dflash-runner journal show cpu-tiny --json | tail"
	cmd.AddCommand(c.journalShow(), c.journalVerify())
	return cmd
}

// entry is a line of `journal show --json`.
type entry struct {
	Number uint64 `json:"number"`
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Type   string `json:"type"`
	Record any    `json:"record"`
}

func (c *cli) journalShow() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use: "show [RUN]", Short: "Print every record", Example: "  dflash-runner journal show cpu-tiny --json", Args: atMost(1),
		Long: "Prints every record of a run's journal, a line each. It changes nothing; a torn tail is told on stderr.",
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			s, err := journal.Scan(filepath.Join(dir, "journal"), func(e journal.Entry) error {
				line := entry{e.Number, filepath.Base(e.File), e.Offset, runner.RecordType(e.Record), plain(reflect.ValueOf(e.Record))}
				text, err := json.Marshal(line.Record)
				if c.json && err == nil {
					text, err = json.Marshal(line)
				}
				if err != nil {
					return runner.Errorf(runner.Internal, "print record %d: %w", e.Number, err)
				}
				if c.json {
					return c.print("%s\n", text)
				}
				return c.print("%6d %-12s %s\n", line.Number, line.Type, text)
			})
			if err == nil && s.Torn != nil {
				c.tell("note", "torn tail in "+s.Torn.File+": "+s.Torn.Reason)
			}
			return err
		},
	})
}

func (c *cli) journalVerify() *cobra.Command {
	var index string
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "verify [RUN]",
		Short: "Prove that every sample was settled once, from the files alone",
		Long: "Proves from the journal and the data index that the lineage is contiguous, that every step plan follows\n" +
			"from the order of samples, and that every sample of an epoch was settled exactly once.\n" +
			"Exit 1 where it does not hold.",
		Example: "  dflash-runner journal verify cpu-tiny --json",
		Args:    atMost(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			report, err := verify(dir, index)
			if err != nil {
				if runner.KindOf(err) == runner.Invalid {
					c.code = runner.ExitFailed // the journal is wrong, not the command line
				}
				return err
			}
			for _, w := range report.Warnings {
				c.tell("warning", w)
			}
			if c.json {
				return c.printJSON(report)
			}
			return c.print("verified: %d records, lineage %d, step %d of %d planned, %d rows, %d samples trained, %d skipped, chain %s\n",
				report.Records, report.Lineage, report.Committed, report.Planned, report.Rows, report.Samples, report.Skipped, report.Chain)
		},
	})
	cmd.Flags().StringVar(&index, "index", "", "the data index (default: that of the manifest, found in the cache)")
	return cmd
}

// verify proves a run's journal.
func verify(dir, index string) (journal.Report, error) {
	m, text, err := manifest(dir)
	if err != nil {
		return journal.Report{}, err
	}
	loaded, err := config.Load(filepath.Join(dir, "config.yaml"), nil)
	if err != nil {
		return journal.Report{}, err
	}
	ix, err := findIndex(m.Index, index)
	if err != nil {
		return journal.Report{}, err
	}
	planned, err := up.RowsConfig(loaded, ix)
	if err != nil {
		return journal.Report{}, err
	}
	sum := runner.Digest(sha256.Sum256(text))
	return journal.Verify(filepath.Join(dir, "journal"), journal.Facts{Index: ix, Config: planned, BitIdentical: m.Bits, Manifest: &sum})
}

// findIndex reads the index with the manifest's digest: the named file, or one
// in the cache.
func findIndex(want, path string) (*rows.Index, error) {
	candidates := []string{path}
	if path == "" {
		cache, err := pyenv.DefaultCacheDir()
		if err != nil {
			return nil, err
		}
		if candidates, err = filepath.Glob(filepath.Join(cache, "data", "*", "train", "index.safetensors")); err != nil {
			return nil, runner.Errorf(runner.Internal, "find index: %w", err)
		}
	}
	for _, file := range candidates {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, runner.Errorf(runner.NotFound, "read index: %w", err)
		}
		ix, err := rows.ParseIndex(file, text)
		if err == nil && hex.EncodeToString(ix.Digest[:]) == want {
			return ix, nil
		}
		if path != "" {
			if err == nil {
				err = runner.Errorf(runner.Invalid, "read index %s: want digest %s, that of the run's manifest, got %x", file, want, ix.Digest)
			}
			return nil, err
		}
	}
	return nil, runner.Errorf(runner.NotFound, "find index %s: it is not in the cache any more", want).WithHint("name it with --index FILE")
}
