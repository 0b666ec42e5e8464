package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/worker"
	scripts "github.com/dflash-runner/dflash-runner/python/bench"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/placement"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// Python is the workers' interpreter and a directory for one bench.
type Python struct {
	interpreter string
	version     string // of Python
	torch       string // installed, "" where it is not known
	tree        string
	dir         string // this bench's own, with its scripts
	release     func()
}

// Open makes the Python environment where there is none, telling how far it is.
// interpreter names an existing Python that has all packages; empty: our own.
// Close removes what the bench wrote.
func Open(ctx context.Context, interpreter string, tell func(kind, text string)) (*Python, error) {
	env, err := pyenv.Ensure(ctx, pyenv.Worker("", interpreter), func(p pyenv.Progress) {
		if p.Stage != "check" && p.Message != "" {
			tell("environment", p.Message)
		}
	})
	if err != nil {
		return nil, err
	}
	p := &Python{interpreter: env.Python, version: env.Version, torch: env.Packages["torch"], release: func() { _ = env.Close() }}
	if p.tree, err = pyenv.Tree(""); err == nil {
		err = p.unpack()
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// unpack writes the scripts into a directory of their own.
func (p *Python) unpack() error {
	var err error
	if p.dir, err = os.MkdirTemp("", "dflash-runner-bench-"); err != nil {
		return runner.Errorf(runner.Unavailable, "make bench directory: %w", err)
	}
	if err := os.CopyFS(p.dir, scripts.Scripts); err != nil {
		return runner.Errorf(runner.Unavailable, "write bench scripts: %w", err)
	}
	return nil
}

// Close gives the environment back.
func (p *Python) Close() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
	p.release()
}

// environment is what every Python of a bench is started with, unless it is
// placed elsewhere than on a CPU.
func (p *Python) environment() []string { return p.on(placement.CPU, 1) }

// on is what a Python on a device, cpu or a GPU's UUID, is started with.
func (p *Python) on(device string, threads int, set ...string) []string {
	return worker.Environment(os.Environ(), append(up.JobEnvironment(p.tree, threads, device), set...))
}

// command prepares a script.
func (p *Python) command(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.interpreter, append([]string{filepath.Join(p.dir, script)}, args...)...)
	cmd.Env, cmd.Dir = p.environment(), p.dir
	return cmd
}

// run runs a script to its end and decodes what it prints, where into is not nil.
func (p *Python) run(ctx context.Context, into any, script string, args ...string) error {
	return finish(ctx, p.command(ctx, script, args...), into)
}

// measure runs a script that is told asked as JSON and answers in JSON, in an
// environment of on.
func (p *Python) measure(ctx context.Context, into any, environment []string, script string, asked any) error {
	text, err := json.Marshal(asked)
	if err != nil {
		return runner.Errorf(runner.Internal, "run %s: %w", script, err)
	}
	cmd := p.command(ctx, script, string(text))
	cmd.Env = environment
	return finish(ctx, cmd, into)
}

// finish waits for a script's end. What it says of an error is the error; where
// it ends without a word, the last line that it wrote.
func finish(ctx context.Context, cmd *exec.Cmd, into any) error {
	script := filepath.Base(cmd.Args[1])
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return runner.Errorf(runner.Canceled, "run %s: interrupted", script)
	}
	if err != nil {
		if told := refusal(out); told != nil {
			return told
		}
		return runner.Errorf(runner.Internal, "run %s: %w: %s", script, err, lastLine(stderr.Bytes()))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(out, into); err != nil {
		return runner.Errorf(runner.Internal, "read result of %s: %w", script, err)
	}
	return nil
}

// refusal reads the error that a script answers with, nil where it gave none.
func refusal(out []byte) error {
	var told struct {
		Error *struct{ Kind, Message, Hint string }
	}
	if json.Unmarshal(lastOf(out), &told) != nil || told.Error == nil {
		return nil
	}
	kind, _ := runner.ParseKind(told.Error.Kind)
	return runner.Errorf(kind, "%s", told.Error.Message).WithHint("%s", told.Error.Hint)
}

// lastLine gives the end of a traceback: what went wrong.
func lastLine(text []byte) string { return string(lastOf(text)) }

func lastOf(text []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return lines[len(lines)-1]
}
