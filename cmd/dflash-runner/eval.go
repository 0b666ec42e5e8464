package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

func (c *cli) evalCommand() *cobra.Command {
	j := &jobv1.Evaluate{}
	var interpreter, device string
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "eval DRAFTER",
		Short: "Measure an exported drafter: acceptance, losslessness, speed",
		Long: "Decodes prompts greedily with a target alone and with an exported drafter, and compares: tokens\n" +
			"gained per forward of the target (the bonus token counted), equality of the texts, and speed.\n" +
			"lossless is how many prompts gave the same text both ways, of all prompts; with --json both are numbers.\n" +
			"It writes nothing: interrupted, it ends with exit 1, and there is nothing to resume.",
		Example: "  dflash-runner eval runs/cpu-tiny/export --target ./target --prompts prompts.jsonl --json",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || j.TargetDirectory == "" || j.Prompts == "" {
				return lacking(cmd, "eval: want a drafter's directory, --target DIRECTORY and --prompts FILE")
			}
			var err error
			if j.DrafterDirectory, err = filepath.Abs(args[0]); err != nil {
				return runner.Errorf(runner.Internal, "eval: %w", err)
			}
			uuid, err := firstGPU(cmd.Context(), device)
			if err != nil {
				return err
			}
			r, err := c.job(cmd.Context(), interpreter, uuid, &jobv1.Job{Job: &jobv1.Job_Evaluate{Evaluate: j}})
			if err != nil {
				return interrupted(err, "")
			}
			return c.printResult(r)
		},
	})
	cmd.Flags().StringVar(&j.TargetDirectory, "target", "", "the target's directory")
	cmd.Flags().StringVar(&j.Prompts, "prompts", "", "prompts.safetensors, or .jsonl with tokens, messages, prompt or text")
	cmd.Flags().Uint32Var(&j.PromptCount, "count", 0, "how many prompts (default: all)")
	cmd.Flags().Uint32Var(&j.NewTokens, "new-tokens", 96, "to decode for each")
	cmd.Flags().StringVar(&j.Dtype, "dtype", "float32", "float32 or bfloat16")
	cmd.Flags().StringVar(&device, "device", "cpu", "cpu or cuda: the first GPU that is free")
	cmd.Flags().StringVar(&interpreter, "python", "", "an existing Python that has all packages (default: our own environment)")
	return cmd
}

// firstGPU gives the UUID of the first GPU that this process may use and nobody
// else does, for device cuda.
func firstGPU(ctx context.Context, device string) (string, error) {
	switch device {
	case placement.CPU:
		return device, nil
	case "cuda":
	default:
		return "", usage("eval: --device: want cpu or cuda, got %q", device)
	}
	_, chosen, _, err := machine.GPUs(ctx, nil, false)
	if err != nil {
		return "", err
	}
	for _, g := range chosen {
		if g.Busy == "" {
			return g.UUID, nil
		}
	}
	return "", runner.Errorf(runner.Exhausted, "eval: want a GPU that nobody else uses, got none of %d", len(chosen)).WithHint("`dflash-runner doctor` says who uses them; --device cpu")
}

// result is a job's result as JSON.
type result struct {
	Figures  map[string]float64 `json:"figures"`
	Facts    map[string]string  `json:"facts"`
	Warnings []string           `json:"warnings"`
}

// printResult prints a job's figures and facts, by name.
func (c *cli) printResult(r *jobv1.Result) error {
	if c.json {
		return c.printJSON(result{r.Figures, r.Facts, append([]string{}, r.Warnings...)})
	}
	names := []string{}
	for name := range r.Figures {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		of := ""
		if name == "lossless" { // of an evaluation: how many prompts gave the same text
			of = fmt.Sprintf(" of %.6g", r.Figures["prompts"])
		}
		if err := c.print("%-24s %.6g%s\n", name, r.Figures[name], of); err != nil {
			return err
		}
	}
	names = names[:0]
	for name := range r.Facts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := c.print("%-24s %s\n", name, r.Facts[name]); err != nil {
			return err
		}
	}
	return nil
}
