// Package jobs runs the work that needs Python but no run: preparing data,
// exporting a checkpoint, evaluating an export.
package jobs

import (
	"context"
	"io"
	"runtime"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/worker"
	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// grace is how long a job may take to end after SIGTERM.
const grace = 5 * time.Second

// Runner has a Python to run jobs with.
type Runner struct {
	python  string
	tree    string
	threads int
	device  string // cpu, or a GPU's UUID
	stderr  io.Writer
}

// New makes the Python environment where there is none, telling on stderr how
// far it is. interpreter names an existing Python that has all packages; empty:
// our own. device is cpu, or the UUID of a GPU. Close gives the environment back.
func New(ctx context.Context, interpreter, device string, stderr io.Writer, tell func(kind, text string)) (*Runner, func(), error) {
	env, err := pyenv.Ensure(ctx, pyenv.Worker("", interpreter), func(p pyenv.Progress) {
		if p.Stage != "check" && p.Message != "" {
			tell("environment", p.Message)
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for _, w := range env.Warnings {
		tell("warning", w)
	}
	release := func() { _ = env.Close() }
	tree, err := pyenv.Tree("")
	if err != nil {
		release()
		return nil, nil, err
	}
	return &Runner{python: env.Python, tree: tree, threads: runtime.NumCPU(), device: device, stderr: stderr}, release, nil
}

// Run runs one job to its end. progress gets its reports, from one goroutine.
func (r *Runner) Run(ctx context.Context, j *jobv1.Job, progress func(*jobv1.Progress)) (*jobv1.Result, error) {
	j.Threads = uint32(r.threads)
	up.Tell(j, r.device)
	in, err := proto.Marshal(j)
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "encode job: %w", err)
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: "job", Output: r.stderr, Level: hclog.Warn})
	a := answer{progress: progress}
	err = worker.RunJob(ctx, worker.JobSpec{
		Argv: []string{r.python, "-m", "dflash_runner.job"}, Stdin: in, Logger: logger, Grace: grace,
		Env: up.JobEnvironment(r.tree, r.threads, r.device),
	}, a.line)
	switch {
	case ctx.Err() != nil:
		return nil, runner.Errorf(runner.Canceled, "run job: interrupted")
	case a.failed != nil:
		return nil, a.failed
	case err != nil:
		return nil, err
	case a.result == nil:
		return nil, runner.Errorf(runner.Internal, "run job: it ended without a result")
	}
	return a.result, nil
}

// answer collects what a job prints.
type answer struct {
	progress func(*jobv1.Progress)
	result   *jobv1.Result
	failed   error
}

// line takes one report; the first failure stays.
func (a *answer) line(text []byte) {
	var r jobv1.Report
	if err := protojson.Unmarshal(text, &r); err != nil {
		if a.failed == nil {
			a.failed = runner.Errorf(runner.Internal, "read the job's report: %w", err)
		}
		return
	}
	switch r := r.Report.(type) {
	case *jobv1.Report_Progress:
		a.progress(r.Progress)
	case *jobv1.Report_Result:
		a.result = r.Result
	case *jobv1.Report_Error:
		kind, ok := runner.ParseKind(r.Error.Kind)
		if !ok {
			kind = runner.Internal
		}
		a.failed = &runner.Error{Kind: kind, Msg: r.Error.Message, Hint: r.Error.Hint}
	}
}
