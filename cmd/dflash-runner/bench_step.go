package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/bench"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// benchExits is what the benches of workers say about their end.
const benchExits = "\n\nExit codes: 0 measured, also where a goal was missed; 2 for a workload that cannot be, or a Python without the\n" +
	"packages or built without CUDA; 3 without the GPUs that were asked for; 1 for the rest."

// defaultPrecision leaves matrix products to the workload's dtype.
const defaultPrecision = "compute_dtype"

// benchFlags are those of benches that compute: where, with what, on what.
type benchFlags struct {
	interpreter, device, workload string
	precision                     string
	gpus, scale                   int
	sizes                         bench.Sizes
}

// places adds the flags that say where to compute.
func (f *benchFlags) places(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.device, "device", "auto", "cuda, cpu, or auto: a GPU where there is one")
	pythonFlag(cmd, &f.interpreter)
}

// shapes adds the flags that say on what.
func (f *benchFlags) shapes(cmd *cobra.Command) {
	o := cmd.Flags()
	o.StringVar(&f.workload, "workload", "", "W, the reference, or tiny (default: W on a GPU, tiny on a CPU)")
	o.IntVar(&f.scale, "scale", 1, "divides hidden size, tokens, anchors and vocabulary")
	for _, x := range []struct {
		into       *int
		name, what string
	}{
		{&f.sizes.Tokens, "tokens", "S, context tokens of a row"}, {&f.sizes.Anchors, "anchors", "N, blocks of a row"}, {&f.sizes.Block, "block", "tokens of a block"},
		{&f.sizes.Vocabulary, "vocabulary", "of the target"}, {&f.sizes.Hidden, "hidden", "hidden size; heads and MLP follow"},
		{&f.sizes.Layers, "layers", "of the drafter"}, {&f.sizes.Captured, "captured", "layers of the target"},
	} {
		o.IntVar(x.into, x.name, 0, x.what+" (default: the workload's)")
	}
	o.StringVar(&f.precision, "precision", defaultPrecision, "of matrix products: compute_dtype, or fp8 (see drafter.precision)")
	o.StringVar(&f.sizes.DType, "dtype", "", "float32 or bfloat16, of compute (default: the workload's)")
}

// shape settles what is computed on.
func (f *benchFlags) shape(cuda bool) (bench.Shape, error) {
	name := f.workload
	if name == "" {
		name = map[bool]string{true: bench.WorkloadW, false: bench.WorkloadTiny}[cuda]
	}
	s, err := bench.Named(name)
	if err != nil {
		return s, err
	}
	if cuda {
		s.DType = "bfloat16" // the only one that is compiled
	}
	if s, err = s.Scaled(f.scale); err != nil {
		return s, err
	}
	s = s.With(f.sizes)
	if f.precision != defaultPrecision {
		s.Precision = f.precision
	}
	return s, s.Check(cuda)
}

// workers measures with devices and a shape.
func (c *cli) workers(ctx context.Context, f *benchFlags, measure func(context.Context, *bench.Python, bench.Devices, bench.Shape) (*bench.Report, error)) error {
	d, err := bench.Choose(ctx, f.device, f.gpus)
	if err != nil {
		return err
	}
	s, err := f.shape(d.OnGPU())
	if err != nil {
		return err
	}
	return c.bench(ctx, f.interpreter, func(ctx context.Context, p *bench.Python) (*bench.Report, error) { return measure(ctx, p, d, s) })
}

func (c *cli) benchStepCommand() *cobra.Command {
	var f benchFlags
	rows, perStep, profile, role, documents := 20, 4, false, "drafter", bench.DocumentsFixed
	var try []string
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "step",
		Short: "A drafter's row and update, beside the rate of matrix products",
		Long: "Builds and warms up a drafter as a worker does, and measures a row from its anchors to the applied update, and\n" +
			"without the update, beside one large product of matrices on the same device. Rows are made up on the device.\n" +
			"--profile adds where the time goes: by group of kernels, the longest kernels, and on a GPU the gaps between\n" +
			"kernels in steps that follow one another.\n\n" +
			"--documents mixed measures rows of many documents beside those of one that fills the row, in the same process:\n" +
			"lengths log-uniform between 256 tokens and the row's, the last 60 % of each supervised, packed and anchors shared\n" +
			"out as a run does it, eight different rows in turn. Blocks and tokens are those that are trained on: no padding.\n" +
			"--profile then looks at mixed rows.\n\n" +
			"--role target measures a target's row instead: a random target of 36 layers and of the workload's sizes, made on\n" +
			"the device, a row packed of five documents; by the model's own attention, as a worker makes it on a GPU (compiled,\n" +
			"and replayed), and with all logits. --try adds other ways, each an attention (sdpa, efficient, cudnn, math,\n" +
			"causal, varlen, flex), a fusion (norms, blocks), or both with a plus sign. causal takes the row for one document.\n\n" +
			"--gpus 2 measures a drafter alone on the first GPU, and then two at once that sum their gradients over NCCL, fed\n" +
			"from rows made beforehand, --rows-per-step each in a step, all but the last replayed, as in a worker: rows a\n" +
			"second, and how long the sum kept each. With --device cpu both are on it, and sum over gloo." + benchExits,
		Example: "  dflash-runner bench step --profile\n  dflash-runner bench step --device cpu --rows 5 --json\n" +
			"  dflash-runner bench step --scale 4 --anchors 64\n  dflash-runner bench step --precision fp8\n" +
			"  dflash-runner bench step --documents mixed\n" +
			"  dflash-runner bench step --role target --profile --try varlen,varlen+norms\n" +
			"  dflash-runner bench step --gpus 2 --rows 40 --rows-per-step 8",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rows < 1 {
				return usage("bench step: --rows: want at least 1, got %d", rows)
			}
			if role != "drafter" && role != "target" {
				return usage("bench step: --role: want drafter or target, got %q", role)
			}
			if len(try) > 0 && role != "target" {
				return usage("bench step: --try: want --role target with it, got %s", role)
			}
			if f.precision != defaultPrecision && role == "target" {
				return usage("bench step: --precision: want %s with --role target, got %q", defaultPrecision, f.precision)
			}
			if err := bench.CheckDocuments(documents); err != nil {
				return err
			}
			if documents != bench.DocumentsFixed && role == "target" {
				return usage("bench step: --documents: want %s with --role target, got %q", bench.DocumentsFixed, documents)
			}
			if err := bench.CheckWays(try); err != nil {
				return err
			}
			if f.gpus != 0 && f.gpus != 1 && f.gpus != bench.Drafters {
				return usage("bench step: --gpus: want 1 or %d, got %d", bench.Drafters, f.gpus)
			}
			several := f.gpus == bench.Drafters
			switch {
			case several && (role != "drafter" || profile || documents != bench.DocumentsFixed):
				return usage("bench step: --gpus %d: want drafters without --profile, and --documents %s", f.gpus, bench.DocumentsFixed)
			case several && (perStep < 1 || rows%perStep != 0):
				return usage("bench step: --rows-per-step: want a divisor of --rows %d, got %d", rows, perStep)
			case several && f.device == placement.CPU:
				f.gpus = 0 // both are on it
			}
			return c.workers(cmd.Context(), &f, func(ctx context.Context, p *bench.Python, d bench.Devices, s bench.Shape) (*bench.Report, error) {
				if role == "target" {
					return bench.RowBench(ctx, p, d, s, rows, profile, try)
				}
				if several {
					return bench.DraftersBench(ctx, p, d, s, rows, perStep)
				}
				return bench.StepBench(ctx, p, d, s, rows, profile, documents)
			})
		},
	})
	cmd.Flags().IntVar(&rows, "rows", rows, "to measure, each a step of one row; with --gpus 2 of each drafter")
	cmd.Flags().BoolVar(&profile, "profile", false, "where the time goes")
	cmd.Flags().IntVar(&f.gpus, "gpus", 0, "2: two drafters that sum their gradients, beside one alone (default: one)")
	cmd.Flags().IntVar(&perStep, "rows-per-step", perStep, "of each drafter, with --gpus 2")
	cmd.Flags().StringVar(&role, "role", role, "whose: drafter or target")
	cmd.Flags().StringVar(&documents, "documents", documents, "of a drafter's rows: fixed, one that fills the row; mixed, many lengths, packed, beside it")
	cmd.Flags().StringSliceVar(&try, "try", nil, "ways of a target's row that no worker takes, apart by commas")
	f.places(cmd)
	f.shapes(cmd)
	return cmd
}

func (c *cli) benchWarmUpCommand() *cobra.Command {
	var f benchFlags
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "warmup",
		Short: "A first worker's warm-up, and a second's that finds its kernels",
		Long: "Builds and warms up the same drafter in two processes, one after the other, with a compile cache that is empty\n" +
			"before the first. The ratio is that of both passes and the comparison with the oracle." + benchExits,
		Example: "  dflash-runner bench warmup\n  dflash-runner bench warmup --gpus 2 --json",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.gpus < 0 || f.gpus > 2 {
				return usage("bench warmup: --gpus: want 1 or 2, got %d", f.gpus)
			}
			return c.workers(cmd.Context(), &f, bench.WarmUpBench)
		},
	})
	cmd.Flags().IntVar(&f.gpus, "gpus", 0, "2: the second process is on the second GPU (default: both on the first)")
	f.places(cmd)
	f.shapes(cmd)
	return cmd
}
