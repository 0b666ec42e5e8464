package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// Pipeline says which run is to be measured.
type Pipeline struct {
	Self   string   // this program
	Config string   // of the run; empty: one that ships, on a random target
	Steps  int      // to train
	Set    []string // path=value, over everything
	Stderr *os.File // takes the run's progress
}

const (
	endWait      = time.Minute // for a run to end that was asked to
	pipelineName = "pipeline"
)

// PipelineBench runs `up` for some steps in a directory of its own and reads
// what it says of itself afterwards: its summary and its events.
func PipelineBench(ctx context.Context, p *Python, d Devices, o Pipeline) (*Report, error) {
	r := start("pipeline")
	set := append([]string{fmt.Sprintf("training.steps=%d", o.Steps), "training.epochs=0", "run.directory=" + quote(filepath.Join(p.dir, "runs")),
		"python.interpreter=" + quote(p.interpreter)}, o.Set...)
	file, environment := o.Config, os.Environ()
	if file == "" {
		more, shipped, err := p.shipped(ctx, d, set)
		if err != nil {
			return nil, err
		}
		file, set = shipped, append(more, set...)
		environment = append(environment, "XDG_CACHE_HOME="+filepath.Join(p.dir, "cache")) // its data is never met again
	}
	if err := o.run(ctx, p, environment, file, set); err != nil {
		return nil, err
	}
	dir := filepath.Join(p.dir, "runs", pipelineName)
	s, err := admin.ReadSummary(dir)
	if err != nil {
		return nil, err
	}
	decided, err := decidedSteps(ctx, filepath.Join(dir, "events.jsonl"))
	if err != nil {
		return nil, err
	}
	shape, err := shapeOf(filepath.Join(dir, "config.yaml"))
	if err != nil {
		return nil, err
	}
	if err := r.pipeline(s, decided, shape); err != nil {
		return nil, err
	}
	used, err := devicesOf(ctx, s.Workers)
	if err != nil {
		return nil, err
	}
	r.on(used)
	r.Torch, r.Versions["python"] = p.torch, p.version
	return r.done(), nil
}

// shipped writes a configuration that ships, for these devices, and makes a
// random target and samples for it, so that nothing is trained before the run.
func (p *Python) shipped(ctx context.Context, d Devices, set []string) (more []string, file string, err error) {
	name := map[bool]string{true: "gpu-1.yaml", false: "cpu-test.yaml"}[d.OnGPU()]
	text, err := configs.Files.ReadFile(name)
	if err != nil {
		return nil, "", runner.Errorf(runner.Internal, "read configuration %s: %w", name, err)
	}
	file = filepath.Join(p.dir, name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, "", runner.Errorf(runner.Unavailable, "write configuration: %w", err)
	}
	c, err := config.Load(file, set)
	if err != nil {
		return nil, "", err
	}
	target := filepath.Join(p.dir, "random")
	if err := p.makeTarget(ctx, randomOf(c, target, 32*c.Training.RowsPerStep)); err != nil {
		return nil, "", err
	}
	kept, err := pyenv.DefaultCacheDir()
	if err != nil {
		return nil, "", err
	}
	return []string{"warmup.cache_directory=" + quote(kept), "target.directory=" + quote(target), "data.files=[" + quote(filepath.Join(target, "train.jsonl")) + "]", "data.heldout_files=[" + quote(filepath.Join(target, "heldout.jsonl")) + "]",
		"data.regenerate.samples=0", "evaluate.prompts=1", "evaluate.prompt_tokens=4", "evaluate.new_tokens=4", "evaluate.heldout_samples=1"}, file, nil
}

// quote writes a text as a value of --set.
func quote(text string) string {
	b, _ := json.Marshal(text) // a text always has JSON
	return string(b)
}

// run is `up`, to its end. When ctx ends it is asked to end, with a checkpoint.
func (o Pipeline) run(ctx context.Context, p *Python, environment []string, file string, set []string) error {
	args := []string{"up", "-f", file, "--name", pipelineName, "--plain"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.CommandContext(ctx, o.Self, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay, cmd.Stderr, cmd.Env = endWait, o.Stderr, environment
	err := cmd.Run()
	if ctx.Err() != nil {
		return runner.Errorf(runner.Canceled, "run pipeline: interrupted")
	}
	if err == nil {
		return nil
	}
	kind, reason := runner.Internal, ""
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		kind = map[int]runner.Kind{runner.ExitUsage: runner.Invalid, runner.ExitPreflight: runner.Exhausted}[exit.ExitCode()]
	}
	if s, failed := admin.ReadSummary(filepath.Join(p.dir, "runs", pipelineName)); failed == nil {
		reason = ": " + s.ExitReason
	}
	return runner.Errorf(kind, "run pipeline: up: %w%s", err, reason)
}

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
	r.add("supervisor CPU time a committed row", s.SupervisorCPUS*1000/float64(s.Rows), "ms", 0, atMost(1))
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
