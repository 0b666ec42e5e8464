package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/bench"
)

// Sizes of a row's hidden states in MiB, where none is named: the reference's
// 3,072 tokens on a GPU.
const (
	rowOnGPU = 120
	rowOnCPU = 96
)

func (c *cli) benchHandoffCommand() *cobra.Command {
	var f benchFlags
	size, rounds := 0, 15
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "handoff",
		Short: "A row from one process to another, beside a plain copy",
		Long: "Writes a row into a slot in one process and reads it back in another, through the arenas that a run has: on GPUs\n" +
			"cuda_vmm, made by the producer, its descriptor passed on as by a supervisor; both processes on one GPU, and from\n" +
			"the first GPU to the second where there are two. Beside it, in turns, a plain copy of as many bytes between the\n" +
			"same devices. On a CPU the arena is a memfd, and the row goes through a slot within one process as well." + benchExits,
		Example: "  dflash-runner bench handoff --gpus 2\n  dflash-runner bench handoff --device cpu --mebibytes 128",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if size < 0 || size > 4096 || cmd.Flags().Changed("mebibytes") && size < 1 || rounds < 3 || f.gpus < 0 || f.gpus > 2 {
				return usage("bench handoff: want --mebibytes 1 to 4096, at least 3 --rounds and at most 2 --gpus, got %d, %d and %d", size, rounds, f.gpus)
			}
			d, err := bench.Choose(cmd.Context(), f.device, f.gpus)
			if err != nil {
				return err
			}
			if size == 0 {
				size = map[bool]int{true: rowOnGPU, false: rowOnCPU}[d.OnGPU()]
			}
			return c.bench(cmd.Context(), f.interpreter, func(ctx context.Context, p *bench.Python) (*bench.Report, error) {
				return bench.Handoff(ctx, p, d, size, rounds)
			})
		},
	})
	cmd.Flags().IntVar(&size, "mebibytes", 0, "the row's hidden states; several times that in memory (default: 120 on a GPU, 96 on a CPU)")
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "of everything, one after the other")
	cmd.Flags().IntVar(&f.gpus, "gpus", 0, "2: also from the first GPU to the second (default: one)")
	f.places(cmd)
	return cmd
}
