package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/bench"
	"github.com/dflash-runner/dflash-runner/runner"
)

// smallWorkload is what pipeline runs where no other is named.
const smallWorkload = "small"

func (c *cli) benchPipelineCommand() *cobra.Command {
	var f benchFlags
	var o bench.Pipeline
	o.Steps = 50
	f.precision = defaultPrecision // drafter.precision says it
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "pipeline",
		Short: "A whole run for some steps: rows a second, and what its workers wait for",
		Long: "Runs `up` for some steps in a directory of its own and reads its summary and events: rows and steps a second, what\n" +
			"every worker's time went to while it trained and what a row took each role, waits for images, the supervisor's CPU\n" +
			"time a row, warm-up. Without -f it is configs/gpu-1.yaml on a GPU and configs/cpu-test.yaml on a CPU, with a target\n" +
			"of random weights and samples of random tokens, so that nothing is trained before. With -f the file says on which\n" +
			"devices.\n\n" +
			"--workload W is the reference: a random target of Qwen3-8B's sizes, made on the device (16.4 GB on the disk until\n" +
			"the end), rows of 3,072 tokens, four a step, one target and one drafter on one GPU, which take turns. The run is\n" +
			"ended at once after its last step: its state of 12.6 GB is not saved, evaluated or exported, but with --whole." + benchExits,
		Example: "  dflash-runner bench pipeline --steps 200\n  dflash-runner bench pipeline -f configs/gpu-2.yaml --steps 100 --json\n" +
			"  dflash-runner bench pipeline --set workers.slots=5\n  dflash-runner bench pipeline --workload W --steps 40 --json\n" +
			"  dflash-runner bench pipeline --workload W --scale 64 --device cpu",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Steps < 2 {
				return usage("bench pipeline: --steps: want at least 2, got %d", o.Steps)
			}
			reference := f.workload == bench.WorkloadW
			switch {
			case !reference && f.workload != smallWorkload:
				return usage("bench pipeline: --workload: want %s or %s, got %q", bench.WorkloadW, smallWorkload, f.workload)
			case reference && o.Config != "":
				return usage("bench pipeline: --workload: want %s with -f, which says what is run, got %s", smallWorkload, f.workload)
			case !reference && (f.scale != 1 || o.Whole):
				return usage("bench pipeline: --scale, --whole: want --workload %s with them, got %s", bench.WorkloadW, f.workload)
			}
			d, err := bench.Choose(cmd.Context(), f.device, 0)
			if err != nil {
				return err
			}
			if reference {
				s, err := f.shape(d.OnGPU())
				if err != nil {
					return err
				}
				o.Shape = &s
			}
			if o.Self, err = os.Executable(); err != nil {
				return runner.Errorf(runner.Internal, "find this program: %w", err)
			}
			o.Stderr = c.err
			return c.bench(cmd.Context(), f.interpreter, func(ctx context.Context, p *bench.Python) (*bench.Report, error) {
				return bench.PipelineBench(ctx, p, d, o)
			})
		},
	})
	cmd.Flags().StringVarP(&o.Config, "file", "f", "", "the run's configuration (default: one that ships, on a random target)")
	cmd.Flags().StringArrayVar(&o.Set, "set", nil, "path=value, over the configuration; may be given several times")
	cmd.Flags().IntVar(&o.Steps, "steps", o.Steps, "to train")
	cmd.Flags().StringVar(&f.workload, "workload", smallWorkload, "small, or W: the reference")
	cmd.Flags().IntVar(&f.scale, "scale", 1, "divides W's hidden size, tokens, anchors and vocabulary")
	cmd.Flags().BoolVar(&o.Whole, "whole", false, "with W: also save, evaluate and export at the end")
	f.places(cmd)
	return cmd
}
