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
	p := &Python{interpreter: env.Python, release: func() { _ = env.Close() }}
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

// environment is what every Python of a bench is started with.
func (p *Python) environment() []string {
	return worker.Environment(os.Environ(), up.JobEnvironment(p.tree, 1, placement.CPU))
}

// command prepares a script.
func (p *Python) command(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.interpreter, append([]string{filepath.Join(p.dir, script)}, args...)...)
	cmd.Env, cmd.Dir = p.environment(), p.dir
	return cmd
}

// run runs a script to its end and decodes what it prints, where into is not nil.
func (p *Python) run(ctx context.Context, into any, script string, args ...string) error {
	cmd := p.command(ctx, script, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return runner.Errorf(runner.Canceled, "run %s: interrupted", script)
	}
	if err != nil {
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

// lastLine gives the end of a traceback: what went wrong.
func lastLine(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(lines[len(lines)-1])
}
