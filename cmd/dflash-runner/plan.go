package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

func (c *cli) planCommand() *cobra.Command {
	var from source
	var fit bool
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "plan",
		Short: "Show placement, memory, shapes and the time to the first step; start nothing",
		Long: "Shows what a configuration will take on this machine: which worker runs where, memory, slots, shapes,\n" +
			"and an estimate of when the first step will be done. It starts nothing. Exit 3 where it does not fit.\n" +
			"With --fit it chooses the longest bucket and the most anchors that fit, and prints the keys to change.",
		Example: "  dflash-runner plan -f my.yaml\n  dflash-runner plan --json | jq .arenas\n  dflash-runner plan -f my.yaml --fit",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := c.load(cmd, from)
			if err != nil {
				return err
			}
			if fit {
				return c.fit(cmd.Context(), loaded)
			}
			p, err := c.plan(cmd.Context(), loaded)
			if err != nil {
				return err
			}
			if !p.Fits {
				c.code = runner.ExitPreflight
				c.complain(runner.Errorf(runner.Exhausted, "plan %s: want %d MiB of memory, got %d MiB", p.Name, p.MemoryBytes>>20, p.Available>>20).
					WithHint("use fewer slots, a smaller bucket or fewer workers; --fit chooses bucket and anchors"))
			}
			if c.json {
				return c.printJSON(p)
			}
			return c.printPlan(p)
		},
	})
	from.flags(cmd)
	cmd.Flags().BoolVar(&fit, "fit", false, "choose the longest bucket and the most anchors that fit")
	return cmd
}

// plan works out the plan for this machine.
func (c *cli) plan(ctx context.Context, loaded *config.Config) (plan.Plan, error) {
	target, err := machine.Target(loaded)
	if err != nil {
		return plan.Plan{}, err
	}
	m, err := machine.Read(ctx, loaded)
	if err != nil {
		return plan.Plan{}, err
	}
	costs, err := machine.Costs(loaded)
	if err != nil {
		return plan.Plan{}, err
	}
	p, _, err := plan.For(loaded, target, m.Machine, costs)
	return p, err
}

// fit prints the sizes that fit this machine.
func (c *cli) fit(ctx context.Context, loaded *config.Config) error {
	target, err := machine.Target(loaded)
	if err != nil {
		return err
	}
	m, err := machine.Read(ctx, loaded)
	if err != nil {
		return err
	}
	f, err := plan.Fit(loaded, target, m.Machine)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(f)
	}
	flags := ""
	for _, change := range f.Changes {
		if err := c.print("%s: %s, was %s\n", change.Path, change.To, change.From); err != nil {
			return err
		}
		flags += " --set " + change.Path + "=" + change.To
	}
	if flags == "" {
		flags = " nothing to change"
	}
	if err := c.print("fit:%s\n", flags); err != nil {
		return err
	}
	return c.printPlan(f.Plan)
}

func (c *cli) printPlan(p plan.Plan) error {
	steps := []any{"steps", p.Steps}
	if p.Steps == 0 {
		steps = []any{"epochs", p.Epochs}
	}
	s, a, e := p.Shapes, p.Arenas, p.FirstStep
	if err := c.print("run %s: %d %s\n", p.Name, steps[1], steps[0]); err != nil {
		return err
	}
	if err := c.printPlaces(p); err != nil {
		return err
	}
	return c.print("  %-12s buckets %v, %d anchors x %d = %d queries, layers %v captured, %d rows a step, %d a drafter\n"+
		"  %-12s %d parameters, vocabulary %d\n"+
		"  %-12s %d of %d slots of %d KiB, %d MiB in all, %s\n"+
		"  %-12s %d MiB each\n"+
		"  %-12s %d MiB of the host wanted, %d MiB available\n"+
		"  %-12s about %.0f s: launch %.0f, warm-up %.0f, step %.1f (assuming %.0f GFLOP/s a worker)\n",
		"shapes", s.Buckets, s.Anchors, s.BlockSize, s.Queries, s.LayerIDs, s.RowsPerStep, s.RowsPerRank,
		"drafter", s.Parameters, s.Vocabulary,
		"arenas", a.Count, a.Slots, a.SlotBytes>>10, a.Bytes>>20, kindText(a),
		"images", p.ImageBytes>>20,
		"memory", p.MemoryBytes>>20, p.Available>>20,
		"first step", e.Seconds, e.LaunchSeconds, e.WarmUpSeconds, e.StepSeconds, e.AssumedFLOPsPerS/1e9)
}

// kindText names the kind of arenas, and why it is not the one that GPUs would have.
func kindText(a plan.Arenas) string {
	if a.Reason == "" {
		return a.Kind
	}
	return a.Kind + ", as " + a.Reason
}

// printPlaces prints where workers run, what they take there, and what is not
// as one might expect.
func (c *cli) printPlaces(p plan.Plan) error {
	for _, w := range p.Workers {
		if err := c.print("  %-12s %-10s %6d MiB, and %d MiB of the host for its process\n", w.Name, p.Where(w.Device), w.MemoryBytes>>20, w.HostBytes>>20); err != nil {
			return err
		}
		if w.Device == placement.CPU {
			continue
		}
		if err := c.print("  %-12s %s\n", "", partsOf(w.Memory)); err != nil {
			return err
		}
	}
	for _, d := range p.Devices {
		if err := c.print("  %-12s %s, %s: %d MiB wanted, %d MiB available\n", p.Where(d.UUID), d.Name, d.UUID, d.Wanted>>20, d.Available>>20); err != nil {
			return err
		}
	}
	for _, note := range p.Notes {
		if err := c.print("  %-12s %s\n", "note", note); err != nil {
			return err
		}
	}
	return nil
}

// partsOf writes the parts of a worker's memory, in MiB, without those of nothing.
func partsOf(m placement.Memory) string {
	var parts []string
	for _, x := range []struct {
		what  string
		bytes uint64
	}{{"weights", m.Weights}, {"gradients", m.Gradients}, {"optimiser", m.Optimiser}, {"activations", m.Activations},
		{"saved for warm-up", m.Saved}, {"row buffers", m.RowBuffers}, {"cuBLAS", m.Workspace}, {"slots", m.Slots}, {"evaluation", m.Evaluation}, {"CUDA itself", m.Context}} {
		if x.bytes > 0 {
			parts = append(parts, x.what+" "+strconv.FormatUint(x.bytes>>20, 10))
		}
	}
	return strings.Join(parts, ", ")
}
