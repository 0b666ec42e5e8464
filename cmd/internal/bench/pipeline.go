package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

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
	Shape  *Shape   // of a workload that it ships for; nil: the small one
	Whole  bool     // with a Shape: also what follows the last step
	Steps  int      // to train
	Set    []string // path=value, over everything
	Stderr *os.File // takes the run's progress

	root string // of runs; empty: the bench's own
}

const (
	endWait       = time.Minute // for a run to end that was asked to
	pipelineName  = "pipeline"
	referenceFile = "qwen3-8b-8gpu-5t3d.yaml" // with the kernels that were chosen for the reference
	rowsOfStep    = 4                         // of the reference, on one GPU
	never         = 100_000_000               // steps
)

// PipelineBench runs `up` for some steps in a directory of its own and reads
// what it says of itself afterwards: its summary and its events.
func PipelineBench(ctx context.Context, p *Python, d Devices, o Pipeline) (*Report, error) {
	r := start("pipeline")
	set := append([]string{fmt.Sprintf("training.steps=%d", o.Steps+o.beyond()), "training.epochs=0", "run.directory=" + quote(filepath.Join(p.dir, "runs")),
		"python.interpreter=" + quote(p.interpreter)}, o.Set...)
	file, environment := o.Config, os.Environ()
	if file == "" {
		more, shipped, err := p.shipped(ctx, d, o, set)
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
	told, err := toldBy(ctx, filepath.Join(dir, "events.jsonl"))
	if err != nil {
		return nil, err
	}
	shape, every, err := shapeOf(filepath.Join(dir, "config.yaml"))
	if err != nil {
		return nil, err
	}
	if o.Shape != nil {
		shape.Workload = shape.nameLike(*o.Shape)
	}
	if err := r.pipeline(s, told, shape, every); err != nil {
		return nil, err
	}
	r.Facts["end"] = map[bool]string{true: "cut short after the last step", false: "whole"}[o.cut()]
	used, err := devicesOf(ctx, s.Workers)
	if err != nil {
		return nil, err
	}
	r.on(used)
	r.Torch, r.Versions["python"] = p.torch, p.version
	return r.done(), nil
}

// cut reports whether the run is ended as soon as its steps are trained: state
// of a billion parameters takes longer to save, to export and to evaluate than
// some dozens of steps, and says nothing of them.
func (o Pipeline) cut() bool { return o.Shape != nil && !o.Whole && o.Config == "" }

// beyond are steps that are planned and never decided, so that it is the end of
// a run that is stopped, which does not evaluate.
func (o Pipeline) beyond() int {
	if o.cut() {
		return 2 // the one that is open when the stop comes may still be finished
	}
	return 0
}

// shipped writes a configuration that ships, for these devices, and makes a
// random target and samples for it, so that nothing is trained before the run.
// set is what the run is told besides; more is what stands before it.
func (p *Python) shipped(ctx context.Context, d Devices, o Pipeline, set []string) (more []string, file string, err error) {
	name := map[bool]string{true: "gpu-1.yaml", false: "cpu-test.yaml"}[d.OnGPU()]
	if o.Shape != nil {
		name = referenceFile
		more = o.reference(d)
	}
	text, err := configs.Files.ReadFile(name)
	if err != nil {
		return nil, "", runner.Errorf(runner.Internal, "read configuration %s: %w", name, err)
	}
	file = filepath.Join(p.dir, name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, "", runner.Errorf(runner.Unavailable, "write configuration: %w", err)
	}
	target := filepath.Join(p.dir, "random")
	more = append(more, "data.files=["+quote(filepath.Join(target, "train.jsonl"))+"]", "data.heldout_files=["+quote(filepath.Join(target, "heldout.jsonl"))+"]",
		"data.regenerate.samples=0", "evaluate.prompts=1", "evaluate.prompt_tokens=4", "evaluate.new_tokens=4", "evaluate.heldout_samples=1")
	var want randomTarget
	on := Devices{}
	if o.Shape != nil {
		want, on = randomFor(*o.Shape, d, target), d
	} else {
		c, err := config.Load(file, append(more[:len(more):len(more)], set...))
		if err != nil {
			return nil, "", err
		}
		want = randomOf(c, target, 32*c.Training.RowsPerStep)
	}
	if err := p.makeTarget(ctx, on, want); err != nil {
		return nil, "", err
	}
	kept, err := pyenv.DefaultCacheDir()
	if err != nil {
		return nil, "", err
	}
	return append(more, "warmup.cache_directory="+quote(kept), "target.directory="+quote(target)), file, nil
}

// reference is what makes the shipped configuration of the reference a run of a
// shape on one device. Its images are as often as they are by default; nothing
// is published before the end.
func (o Pipeline) reference(d Devices) []string {
	s := o.Shape
	set := []string{"target.dtype=" + s.DType, "training.compute_dtype=" + s.DType, "drafter.mask_token_id=-1",
		fmt.Sprintf("drafter.layers=%d", s.Layers), fmt.Sprintf("drafter.captured_layers=%d", s.Captured), fmt.Sprintf("drafter.block_size=%d", s.Block),
		fmt.Sprintf("training.buckets=[%d]", s.Tokens), fmt.Sprintf("training.anchors=%d", s.Anchors), "data.max_tokens=0",
		fmt.Sprintf("training.rows_per_step=%d", rowsOfStep), "workers.targets=1", "workers.drafters=1", "workers.devices=[]",
		fmt.Sprintf("images.every_steps=%d", config.Default().Images.EverySteps), fmt.Sprintf("checkpoints.every_steps=%d", never),
		"checkpoints.keep_last=1", "checkpoints.keep_best=0", "evaluate.every_steps=0"}
	if d.OnGPU() {
		set = append(set, "workers.colocate=true")
	} else {
		set = append(set, "workers.device=cpu", "workers.colocate=auto", "drafter.attention=sdpa")
	}
	if o.cut() {
		set = append(set, fmt.Sprintf("training.stop_after.steps=%d", o.Steps), "failure.deadlines.stop=1s")
	}
	return set
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
	root := o.root
	if root == "" {
		root = filepath.Join(p.dir, "runs")
	}
	s, failed := admin.ReadSummary(filepath.Join(root, pipelineName))
	if o.cut() && failed == nil && int(s.Steps) >= o.Steps && strings.HasPrefix(s.ExitReason, "training.stop_after.") {
		return nil // ended at its last step, as it was to be
	}
	kind, reason := runner.Internal, ""
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		kind = map[int]runner.Kind{runner.ExitUsage: runner.Invalid, runner.ExitPreflight: runner.Exhausted}[exit.ExitCode()]
	}
	if failed == nil {
		reason = ": " + s.ExitReason
	}
	return runner.Errorf(kind, "run pipeline: up: %w%s", err, reason)
}
