package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

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
	return c.print("  %-12s buckets %v, %d anchors x %d = %d queries%s, layers %v captured, %d rows a step, %d a drafter\n"+
		"  %-12s %d parameters, vocabulary %d\n"+
		"  %-12s %d of %d slots of %d KiB, %d MiB in all, %s\n"+
		"  %-12s %d MiB each\n"+
		"  %-12s %d MiB of the host wanted, %d MiB available\n"+
		"  %-12s about %.0f s: launch %.0f, warm-up %.0f, step %.1f (assuming %.0f GFLOP/s a worker)\n",
		"shapes", s.Buckets, s.Anchors, s.BlockSize, s.Queries, draws(s.DrawsPerRow), s.LayerIDs, s.RowsPerStep, s.RowsPerRank,
		"drafter", s.Parameters, s.Vocabulary,
		"arenas", a.Count, a.Slots, a.SlotBytes>>10, a.Bytes>>20, kindText(a),
		"images", p.ImageBytes>>20,
		"memory", p.MemoryBytes>>20, p.Available>>20,
		"first step", e.Seconds, e.LaunchSeconds, e.WarmUpSeconds, e.StepSeconds, e.AssumedFLOPsPerS/1e9)
}

// printScheduler says who would decide, where none was asked.
func (c *cli) printScheduler(name string) error {
	if name == config.Balanced || name == config.Fixed {
		return c.print("  %-12s %s, built in\n", "scheduler", name)
	}
	return c.print("  %-12s %s, a plugin; it is not asked here: `--scheduler %s` starts it and shows what it decides\n", "scheduler", name, name)
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
	}{{"weights", m.Weights}, {"gradients", m.Gradients}, {"optimiser", m.Optimiser}, {"activations", m.Activations}, {"recorded", m.Recorded},
		{"saved for warm-up", m.Saved}, {"row buffers", m.RowBuffers}, {"cuBLAS", m.Workspace}, {"slots", m.Slots}, {"evaluation", m.Evaluation}, {"CUDA itself", m.Context}} {
		if x.bytes > 0 {
			parts = append(parts, x.what+" "+strconv.FormatUint(x.bytes>>20, 10))
		}
	}
	return strings.Join(parts, ", ")
}

// draws says how often a row is trained, where that is more than once.
func draws(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", %d draws a row", n)
}
