package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/bench"
	"github.com/dflash-runner/dflash-runner/runner"
)

func (c *cli) benchPipelineCommand() *cobra.Command {
	var f benchFlags
	var o bench.Pipeline
	o.Steps = 50
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "pipeline",
		Short: "A whole run for some steps: rows a second, and what its workers wait for",
		Long: "Runs `up` for some steps in a directory of its own and reads its summary and events: rows and steps a second, what\n" +
			"every worker's time went to while it trained, the supervisor's CPU time a row, warm-up. Without -f it is\n" +
			"configs/gpu-1.yaml on a GPU and configs/cpu-test.yaml on a CPU, with a target of random weights and samples of\n" +
			"random tokens, so that nothing is trained before. With -f the file says on which devices." + benchExits,
		Example: "  dflash-runner bench pipeline --steps 200\n  dflash-runner bench pipeline -f configs/gpu-2.yaml --steps 100 --json\n" +
			"  dflash-runner bench pipeline --set workers.slots=5",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Steps < 2 {
				return usage("bench pipeline: --steps: want at least 2, got %d", o.Steps)
			}
			d, err := bench.Choose(cmd.Context(), f.device, 0)
			if err != nil {
				return err
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
	f.places(cmd)
	return cmd
}
