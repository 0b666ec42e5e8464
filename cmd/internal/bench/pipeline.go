package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	Steps  int      // to train
	Set    []string // path=value, over everything
	Stderr *os.File // takes the run's progress

	root string // of runs; empty: the bench's own
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
	root := o.root
	if root == "" {
		root = filepath.Join(p.dir, "runs")
	}
	if s, failed := admin.ReadSummary(filepath.Join(root, pipelineName)); failed == nil {
		reason = ": " + s.ExitReason
	}
	return runner.Errorf(kind, "run pipeline: up: %w%s", err, reason)
}
