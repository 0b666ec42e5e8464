package main

import (
	"context"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

func (c *cli) planCommand() *cobra.Command {
	var from source
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "plan",
		Short: "Show placement, memory, shapes and the time to the first step; start nothing",
		Long: "Shows what a configuration will take on this machine: which worker runs where, memory, slots, shapes,\n" +
			"and an estimate of when the first step will be done. It starts nothing. Exit 3 where it does not fit.",
		Example: "  dflash-runner plan -f my.yaml\n  dflash-runner plan --json | jq .arenas",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := config.Load(from.file, from.set)
			if err != nil {
				return err
			}
			p, err := c.plan(cmd.Context(), loaded)
			if err != nil {
				return err
			}
			if !p.Fits {
				c.code = runner.ExitPreflight
				c.complain(runner.Errorf(runner.Exhausted, "plan %s: want %d MiB of memory, got %d MiB", p.Name, p.MemoryBytes>>20, p.Available>>20).
					WithHint("use fewer slots, a smaller bucket or fewer workers"))
			}
			if c.json {
				return c.printJSON(p)
			}
			return c.printPlan(p)
		},
	})
	from.flags(cmd)
	return cmd
}

// plan works out the plan for this machine.
func (c *cli) plan(ctx context.Context, loaded *config.Config) (plan.Plan, error) {
	target := loaded.EmbeddedModel()
	if dir := loaded.Target.Directory; dir != "" {
		var err error
		if target, err = config.ReadModel(dir); err != nil {
			return plan.Plan{}, err
		}
	}
	m := plan.Machine{Cores: runtime.NumCPU()}
	limit, err := arena.Available()
	if err != nil {
		return plan.Plan{}, err
	}
	m.Available = limit.Have
	if loaded.Workers.Device == "cuda" {
		if m.GPUs, m.Links, err = c.gpus(ctx, loaded); err != nil {
			return plan.Plan{}, err
		}
	}
	return plan.Make(loaded, target, m)
}

// gpus lists the machine's GPUs, or those that the configuration names by index
// or UUID, and what keeps them apart.
func (c *cli) gpus(ctx context.Context, loaded *config.Config) (found []placement.GPU, links placement.Links, err error) {
	r, _, err := c.read(ctx, loaded)
	if err == nil && r.GPUErr != nil {
		err = runner.Errorf(runner.Unavailable, "list GPUs: %w", r.GPUErr)
	}
	if err != nil {
		return nil, links, err
	}
	for _, g := range r.GPUs {
		if named := loaded.Workers.Devices; len(named) == 0 || contains(named, g.UUID) || contains(named, strconv.Itoa(g.Index)) {
			found = append(found, placement.GPU{UUID: g.UUID, Bytes: g.MemoryBytes})
		}
	}
	if want := len(loaded.Workers.Devices); len(found) < want {
		return nil, links, runner.Errorf(runner.Invalid, "%s: workers.devices: want %d GPUs of this machine, found %d of them among its %d",
			loaded.Place("workers.devices"), want, len(found), len(r.GPUs)).WithHint("`dflash-runner doctor` lists them")
	}
	return found, r.Links(), nil
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
	for _, w := range p.Workers {
		if err := c.print("  %-12s %-10s %6d MiB, and %d MiB of the host for its process\n", w.Name, w.Device, w.MemoryBytes>>20, w.HostBytes>>20); err != nil {
			return err
		}
	}
	return c.print("  %-12s buckets %v, %d anchors x %d = %d queries, layers %v captured, %d rows a step, %d a drafter\n"+
		"  %-12s %d parameters, vocabulary %d\n"+
		"  %-12s %d of %d slots of %d KiB, %d MiB in all, kind %s\n"+
		"  %-12s %d MiB each\n"+
		"  %-12s %d MiB wanted, %d MiB available\n"+
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
