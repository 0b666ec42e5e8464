package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// progress prints a job's way on stderr, a line for every tenth.
func (c *cli) progress() func(*jobv1.Progress) {
	stage, last := "", uint64(0)
	return func(p *jobv1.Progress) {
		if p.Total == 0 {
			return
		}
		tenth := p.Done * 10 / p.Total
		if p.Stage != stage || tenth > last {
			stage, last = p.Stage, tenth
			c.tell(p.Stage, fmt.Sprintf("%d of %d", p.Done, p.Total))
		}
	}
}

func (c *cli) prepareCommand() *cobra.Command {
	j := &jobv1.Prepare{MinimumTokens: 2}
	var to, interpreter string
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "prepare FILE ...",
		Short: "Tokenise samples and write the index that rows are planned from",
		Long: "Tokenises samples (.jsonl, .txt, .py, .md) with a target's tokenizer and writes data.safetensors and\n" +
			"index.safetensors. `up` does this by itself; this shows what becomes of your files.\n" +
			"Interrupted, it ends with exit 1 and leaves --to as it was: there is nothing to resume.",
		Example: "  dflash-runner prepare --target ./Qwen3-4B --to data train.jsonl",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || j.TargetDirectory == "" || to == "" {
				return lacking(cmd, "prepare: want --target DIRECTORY, --to DIRECTORY and at least one file")
			}
			var err error
			if j.Directory, err = filepath.Abs(to); err != nil {
				return runner.Errorf(runner.Internal, "prepare: %w", err)
			}
			j.Files = args
			r, err := c.job(cmd.Context(), interpreter, placement.CPU, &jobv1.Job{Job: &jobv1.Job_Prepare{Prepare: j}})
			if err != nil {
				return interrupted(err, j.Directory)
			}
			return c.printResult(r)
		},
	})
	cmd.Flags().StringVar(&j.TargetDirectory, "target", "", "the target's directory, with its tokenizer")
	cmd.Flags().StringVar(&to, "to", "", "the directory to write")
	cmd.Flags().StringVar(&j.Format, "format", "auto", "auto, tokens, text, chat or prompt_response")
	cmd.Flags().Uint32Var(&j.MaxTokens, "max-tokens", 3072, "of a sample; longer ones are cut, counted and reported")
	cmd.Flags().Uint32Var(&j.BlockSize, "block-size", 16, "the drafter's")
	cmd.Flags().StringVar(&interpreter, "python", "", "an existing Python that has all packages (default: our own environment)")
	return cmd
}
