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
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// decided is a step as the events tell of it.
type decided struct {
	At           time.Time
	Rows, Tokens float64
}

// events are what a run told while it trained.
type events struct {
	decided []decided     // in order
	images  []runner.Step // whose state was taken and written
}

// during counts the images of steps after which others were decided. That of
// step 0 is taken before there is training, the last one after it.
func (e events) during() (n int) {
	for _, step := range e.images {
		if step > 0 && int(step) < len(e.decided) {
			n++
		}
	}
	return n
}

// toldBy reads a run's events.
func toldBy(ctx context.Context, file string) (out events, err error) {
	for line, err := range admin.Tail(ctx, file, 0, false, nil) {
		if err != nil {
			return out, runner.Errorf(runner.NotFound, "read events: %w", err)
		}
		if !bytes.Contains(line, []byte(`"step decided"`)) && !bytes.Contains(line, []byte(`"image taken"`)) {
			continue
		}
		var e struct {
			At      time.Time
			Event   string
			Step    runner.Step
			Figures struct{ Rows, Tokens float64 }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return out, runner.Errorf(runner.Invalid, "read events: %w", err)
		}
		switch e.Event {
		case "step decided":
			out.decided = append(out.decided, decided{e.At, e.Figures.Rows, e.Figures.Tokens})
		case "image taken":
			out.images = append(out.images, e.Step)
		}
	}
	return out, nil
}

// shapeOf reads what a run computed on from its resolved configuration, and
// every how many steps it took an image.
func shapeOf(file string) (s Shape, every int, err error) {
	c, err := config.Load(file, nil)
	if err != nil {
		return Shape{}, 0, err
	}
	target, err := machine.Target(c)
	if err != nil {
		return Shape{}, 0, err
	}
	sizes := *c
	sizes.Workers.Device, sizes.Drafter.Attention = "cpu", "sdpa" // sizes are the same everywhere, and need no GPU here
	sizes.Arenas.Kind = "auto"
	p, err := plan.Make(&sizes, target, plan.Machine{Cores: 1})
	if err != nil {
		return Shape{}, 0, err
	}
	or := func(v, otherwise int) int {
		if v > 0 {
			return v
		}
		return otherwise
	}
	s = Shape{Workload: c.Run.Name, Tokens: p.Shapes.Buckets[len(p.Shapes.Buckets)-1], Anchors: p.Shapes.Anchors, Block: p.Shapes.BlockSize, Vocabulary: p.Shapes.Vocabulary,
		Hidden: target.HiddenSize, Intermediate: or(c.Drafter.IntermediateSize, target.IntermediateSize), Layers: c.Drafter.Layers, Captured: len(p.Shapes.LayerIDs),
		Heads: or(c.Drafter.Heads, target.Heads), KVHeads: or(c.Drafter.KVHeads, target.KVHeads), HeadDim: or(c.Drafter.HeadDim, target.HeadDim),
		DType: c.Training.ComputeDType, Parameters: p.Shapes.Parameters}
	if c.Drafter.Precision == config.PrecisionFP8 {
		s.Precision = config.PrecisionFP8
	}
	return s, c.Images.EverySteps, nil
}

// nameLike is the workload's name where sizes and dtype are those that it
// stands for, else custom.
func (s Shape) nameLike(named Shape) string {
	s.Workload, s.Parameters, s.Rows, s.Precision = named.Workload, named.Parameters, named.Rows, named.Precision
	if s != named {
		return "custom"
	}
	return named.Workload
}

// pipeline adds what a run came to. Rates are from the first decided step to
// the last, so that nothing of the start is in them.
func (r *Report) pipeline(s admin.Summary, told events, shape Shape, every int) error {
	steps := told.decided
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
	r.roles(s.Workers)
	r.usage(s.Workers)
	r.stall(s.ImageStall, told.during(), every)
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

// stall adds what taking images cost. The goal is about the default interval,
// and holds for longer ones.
func (r *Report) stall(s admin.Stall, images, every int) {
	r.add(fmt.Sprintf("images taken while training (every %d steps)", every), float64(images), "images", 0, nil)
	if s.Share == nil {
		return
	}
	r.add("commits waited for images", 100**s.Share, "% of the time", 0, goalOn(every >= config.Default().Images.EverySteps, atMost(1)))
	r.add("commits that waited for an image", float64(s.Commits), "commits", 0, nil)
	r.add("longest wait of a commit for an image", 1000*s.LongestS, "ms", 0, nil)
	r.add("all waits of commits for images", 1000*s.Seconds, "ms", 0, nil)
}

// busy are the uses of time that are computing; the others are waits.
var busy = map[string]bool{"train": true, "commit": true, "produce": true, "evaluate": true}

// role is what the workers of one role did in the time of usage together.
type role struct {
	workers int
	devices map[string]bool
	used    map[string]float64 // seconds by what
	done    map[string]uint64  // orders by what
}

// sumRole adds the workers of a role up.
func sumRole(workers []admin.SummaryWorker, of runner.Role) role {
	out := role{devices: map[string]bool{}, used: map[string]float64{}, done: map[string]uint64{}}
	for _, w := range workers {
		if w.Name.Role != of {
			continue
		}
		out.workers++
		out.devices[w.Device] = true
		for what, s := range w.Usage {
			out.used[what] += s
		}
		for what, n := range w.Done {
			out.done[what] += n
		}
	}
	return out
}

// all is the time of all its workers, in seconds.
func (x role) all() (s float64) {
	for _, spent := range x.used {
		s += spent
	}
	return s
}

// roles adds what a row took each role when it had its turn, what part of one
// GPU's time such work filled, and how long drafters with GPUs of their own were
// idle. A target's row is its order to produce; a drafter's its order to train,
// with its part of the step's update.
func (r *Report) roles(workers []admin.SummaryWorker) {
	t, d := sumRole(workers, runner.Target), sumRole(workers, runner.Drafter)
	if t.done["produce"] == 0 || d.done["train"] == 0 || d.done["commit"] == 0 {
		return
	}
	steps := float64(d.done["commit"])/float64(d.workers) + 1 // the last update is after the time
	produce := t.used["produce"] / float64(t.done["produce"])
	train := d.used["train"] / float64(d.done["train"])
	update := d.used["commit"] / float64(d.done["commit"]) * steps * float64(d.workers) / float64(d.done["train"])
	r.add("a row's time of a target (produce)", 1e3*produce, "ms", 0, nil)
	r.add("a row's time of a drafter (train)", 1e3*train, "ms", 0, nil)
	r.add("a row's part of the update (commit)", 1e3*update, "ms", 0, nil)
	r.add("a row's time of both roles", 1e3*(produce+train+update), "ms", 0, nil)
	window := d.all() / float64(d.workers)
	r.Facts["evaluation in the time"] = fmt.Sprintf("%.2f s of %.2f s", t.used["evaluate"], window)
	shared, apart := standing(t, d)
	if shared {
		free := window - t.used["evaluate"] // it has turns of its own
		rate := float64(d.done["train"]) / free
		r.add("rows a second without evaluation", rate, "rows/s", 0, nil)
		r.add("one GPU's time in rows, at each role's time alone", 100*rate*(produce+train+update), "% of the time", 0, atLeast(97))
	}
	if apart {
		idle := 100 * (1 - (d.used["train"]+d.used["commit"])/d.all())
		quicker := produce/float64(t.workers) < (train+update)/float64(d.workers)
		r.add("drafters idle", idle, "% of the time", 0, goalOn(quicker, atMost(3)))
	}
}

// standing reports whether all workers are on one GPU, or each has its own.
func standing(t, d role) (shared, apart bool) {
	all := maps.Clone(t.devices)
	maps.Copy(all, d.devices)
	if all[placement.CPU] {
		return false, false
	}
	return len(all) == 1, len(all) == t.workers+d.workers
}

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
