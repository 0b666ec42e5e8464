package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// decided is a step as the events tell of it.
type decided struct {
	At           time.Time
	Rows, Tokens float64
}

// decidedSteps reads the steps that a run decided, in order.
func decidedSteps(ctx context.Context, events string) (out []decided, err error) {
	for line, err := range admin.Tail(ctx, events, 0, false, nil) {
		if err != nil {
			return nil, runner.Errorf(runner.NotFound, "read events: %w", err)
		}
		if !bytes.Contains(line, []byte(`"step decided"`)) {
			continue
		}
		var e struct {
			At      time.Time
			Event   string
			Figures struct{ Rows, Tokens float64 }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, runner.Errorf(runner.Invalid, "read events: %w", err)
		}
		if e.Event == "step decided" {
			out = append(out, decided{e.At, e.Figures.Rows, e.Figures.Tokens})
		}
	}
	return out, nil
}

// shapeOf reads what a run computed on from its resolved configuration.
func shapeOf(file string) (Shape, error) {
	c, err := config.Load(file, nil)
	if err != nil {
		return Shape{}, err
	}
	target, err := machine.Target(c)
	if err != nil {
		return Shape{}, err
	}
	sizes := *c
	sizes.Workers.Device, sizes.Drafter.Attention = "cpu", "sdpa" // sizes are the same everywhere, and need no GPU here
	sizes.Arenas.Kind = "auto"
	p, err := plan.Make(&sizes, target, plan.Machine{Cores: 1})
	if err != nil {
		return Shape{}, err
	}
	or := func(v, otherwise int) int {
		if v > 0 {
			return v
		}
		return otherwise
	}
	return Shape{Workload: c.Run.Name, Tokens: p.Shapes.Buckets[len(p.Shapes.Buckets)-1], Anchors: p.Shapes.Anchors, Block: p.Shapes.BlockSize, Vocabulary: p.Shapes.Vocabulary,
		Hidden: target.HiddenSize, Intermediate: or(c.Drafter.IntermediateSize, target.IntermediateSize), Layers: c.Drafter.Layers, Captured: len(p.Shapes.LayerIDs),
		Heads: or(c.Drafter.Heads, target.Heads), KVHeads: or(c.Drafter.KVHeads, target.KVHeads), HeadDim: or(c.Drafter.HeadDim, target.HeadDim),
		DType: c.Training.ComputeDType, Parameters: p.Shapes.Parameters}, nil
}

// pipeline adds what a run came to. Rates are from the first decided step to
// the last, so that nothing of the start is in them.
func (r *Report) pipeline(s admin.Summary, steps []decided, shape Shape) error {
	if len(steps) < 2 || s.Rows == 0 {
		return runner.Errorf(runner.Invalid, "read figures of run %s: want at least 2 decided steps, got %d", s.Name, len(steps))
	}
	shape.Rows = int(s.Rows)
	r.Shape = &shape
	first, last := steps[0], steps[len(steps)-1]
	span := last.At.Sub(first.At).Seconds()
	if span <= 0 {
		return runner.Errorf(runner.Internal, "read figures of run %s: want time between its steps, got %gs", s.Name, span)
	}
	rows, tokens := 0.0, 0.0
	for _, x := range steps[1:] {
		rows, tokens = rows+x.Rows, tokens+x.Tokens
	}
	r.add("rows a second", rows/span, "rows/s", 0, nil)
	r.add("steps a second", float64(len(steps)-1)/span, "steps/s", 0, nil)
	r.add("context tokens a second ("+shape.stated()+")", tokens/span, "tokens/s", 0, nil)
	r.usage(s.Workers)
	r.stall(s.ImageStall)
	if s.SupervisorCPU.RowMS != nil {
		r.cpuRow(s.SupervisorCPU)
	}
	r.add("supervisor CPU time a committed row", s.SupervisorCPUS*1000/float64(s.Rows), "ms", 0, nil)
	r.cpuParts(s.SupervisorCPU)
	r.add("supervisor peak memory (VmHWM)", float64(s.SupervisorPeakBytes)/mib, "MiB", 0, atMost(48))
	r.add("start to first step", first.At.Sub(s.StartedAt).Seconds(), "s", 0, nil)
	for _, stage := range s.Stages {
		if stage.Name == "launch" || stage.Name == "warm_up" || stage.Name == "train" {
			r.add("stage "+stage.Name, stage.Seconds, "s", 0, nil)
		}
	}
	for _, w := range s.Workers {
		if c := w.Certificate; c != nil {
			r.add("warm-up of "+w.Name.String()+" ("+c.Attention+", cache "+c.Cache+")", c.Seconds, "s", 0, nil)
		}
	}
	var kinds []string
	for _, a := range s.Arenas {
		kinds = append(kinds, fmt.Sprintf("%s with %d hand-offs", a.Kind, a.HandOffs))
	}
	r.Facts["arenas"], r.Facts["steps"] = strings.Join(kinds, ", "), fmt.Sprint(s.Steps)
	r.Facts["of the time"] = "from the first order to train to the last decision"
	return nil
}

// stall adds what taking images cost.
func (r *Report) stall(s admin.Stall) {
	if s.Share == nil {
		return
	}
	r.add("commits waited for images", 100**s.Share, "% of the time", 0, atMost(5))
	r.add("longest wait of a commit for an image", 1000*s.LongestS, "ms", 0, nil)
}

// busy are the uses of time that are computing; the others are waits.
var busy = map[string]bool{"train": true, "commit": true, "produce": true, "evaluate": true}

// usage adds each worker's share of training's time by what it went to.
func (r *Report) usage(workers []admin.SummaryWorker) {
	for _, w := range workers {
		all, used := 0.0, 0.0
		for what, seconds := range w.Usage {
			if all += seconds; busy[what] {
				used += seconds
			}
		}
		if all == 0 {
			continue
		}
		r.add(w.Name.String()+" busy", 100*used/all, "% of the time", 0, nil)
		names := slices.Sorted(maps.Keys(w.Usage))
		for _, computing := range []bool{true, false} {
			text := map[bool]string{true: " busy with ", false: " idle for "}[computing]
			for _, what := range names {
				if busy[what] == computing {
					r.add(w.Name.String()+text+what, 100*w.Usage[what]/all, "% of the time", 0, nil)
				}
			}
		}
	}
}
