package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/bench"
)

func (c *cli) benchPeerCommand() *cobra.Command {
	var f benchFlags
	peer := bench.Peer{Rows: 20, Batch: 1, Rounds: 2, Deadline: 5 * time.Minute}
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "peer",
		Short: "Another trainer's row and update beside ours, from its own checkout",
		Long: "Measures a drafter's row and update as `bench step` does, and beside it the step of a public trainer, run from a\n" +
			"checkout of its sources: the same shape, random weights, random rows of one document, the same GPU. Each side\n" +
			"runs in processes of its own, one at a time and in turns, with a compile cache that is empty at first. Nothing\n" +
			"of a trainer is part of this program: it calls what the checkout publishes, writes nothing into it, and says\n" +
			"which commit it is and whether its files were changed. A second table says what each side's figures include.\n" +
			"Known: SpecForge as of 40d8feff and a6b6b023, DeepSpec (GPU only) as of afdfa7c9. An interpreter with what the\n" +
			"trainer needs is given with --trainer-python; a package that is missing is named." +
			"\n\nExit codes: 0 measured; 2 for a workload or a checkout that cannot be: a name, a parameter or a package that is\n" +
			"not there; 3 without the GPU that was asked for, or where memory ran out; 1 for the rest: the trainer failed,\n" +
			"crashed, or did not answer before --deadline.",
		Example: "  dflash-runner bench peer --trainer specforge --checkout ~/SpecForge --batch 4\n" +
			"  dflash-runner bench peer --trainer deepspec --checkout ~/DeepSpec --trainer-python ~/deepspec-env/bin/python\n" +
			"  dflash-runner bench peer --trainer specforge --checkout ~/SpecForge --device cpu --rows 4 --json",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := peer.Check(true); err != nil { // what holds on any device, before anything is looked for
				return err
			}
			return c.workers(cmd.Context(), &f, func(ctx context.Context, p *bench.Python, d bench.Devices, s bench.Shape) (*bench.Report, error) {
				return bench.PeerBench(ctx, p, d, s, peer)
			})
		},
	})
	o := cmd.Flags()
	o.StringVar(&peer.Trainer, "trainer", "", "specforge or deepspec")
	o.StringVar(&peer.Checkout, "checkout", "", "the directory with the trainer's sources")
	o.StringVar(&peer.Interpreter, "trainer-python", "", "a Python with what the trainer needs (default: the one of --python)")
	o.IntVar(&peer.Rows, "rows", peer.Rows, "to measure in each process, a multiple of --batch")
	o.IntVar(&peer.Batch, "batch", peer.Batch, "rows of the trainer's step; ours has one")
	o.IntVar(&peer.Rounds, "rounds", peer.Rounds, "processes of each side, in turns")
	o.BoolVar(&peer.FSDP, "fsdp", false, "wrap the trainer's model in FSDP, as it ships")
	o.BoolVar(&peer.Compile, "compile", false, "compile DeepSpec's model as a whole, as its configurations ask")
	o.DurationVar(&peer.Deadline, "deadline", peer.Deadline, "for one process, its compile included")
	f.places(cmd)
	f.shapes(cmd)
	return cmd
}
