package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/leash"
)

const (
	keptOutput = 1 << 20 // bytes of what a process prints, the last of it
	drainWait  = 5 * time.Second
	phaseMark  = "peer: " // before a line that says how far a script is
)

// tail keeps the end of what is written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - keptOutput; over > keptOutput {
		t.kept = append(t.kept[:0:0], t.kept[over:]...)
	}
	return len(p), nil
}

// question is a script that is asked in a process of its own, of which nothing
// is trusted but that it can be killed.
type question struct {
	name        string // of whom it is about, for errors
	interpreter string
	script      string
	environment []string
	deadline    time.Duration
	asked       any
}

// put asks, and decodes the answer. The process and whatever it started end with
// its answer, the deadline, ctx, and this process.
func (p *Python) put(ctx context.Context, q question, into any) error {
	text, err := json.Marshal(q.asked)
	if err != nil {
		return runner.Errorf(runner.Internal, "ask %s: %w", q.name, err)
	}
	bounded, cancel := context.WithTimeout(ctx, q.deadline)
	defer cancel()
	cmd := p.command(bounded, q.script, string(text))
	cmd.Path, cmd.Args[0], cmd.Env, cmd.WaitDelay = q.interpreter, q.interpreter, q.environment, drainWait
	var stdout, stderr tail
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = leash.Run(cmd, func() {})
	if errors.Is(err, exec.ErrWaitDelay) { // what it left behind held its output open; killed by now
		err = nil
	}
	switch {
	case ctx.Err() != nil:
		return runner.Errorf(runner.Canceled, "run %s: interrupted", q.name)
	case bounded.Err() != nil:
		return runner.Errorf(runner.Unavailable, "run %s: want an answer within %s, got none%s", q.name, q.deadline, reached(stderr.kept)).
			WithHint("--deadline is how long one process may take")
	}
	if told := refusal(stdout.kept); told != nil {
		return q.refused(told)
	}
	if err != nil {
		return q.died(err, stderr.kept)
	}
	if err := json.Unmarshal(lastOf(stdout.kept), into); err != nil {
		return runner.Errorf(runner.Internal, "read answer of %s: %w", q.name, err)
	}
	return nil
}

// refused says who told an error. Memory that ran out can be had another way.
func (q question) refused(told error) error {
	hint := runner.HintOf(told)
	if runner.KindOf(told) == runner.Exhausted && hint == "" {
		hint = "fewer rows in a step (--batch), or a smaller shape (--scale)"
	}
	return runner.Errorf(runner.KindOf(told), "run %s: %w", q.name, told).WithHint("%s", hint)
}

// died says how a process ended without an answer.
func (q question) died(err error, stderr []byte) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return runner.Errorf(runner.Invalid, "start %s: %w", q.name, err)
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	said := lastLine(stderr)
	if said != "" && !strings.HasPrefix(said, phaseMark) {
		said = ": " + said
	} else {
		said = ""
	}
	told := runner.Errorf(runner.Internal, "run %s: want an answer, got %s%s%s", q.name, exit.ProcessState, reached(stderr), said)
	if status.Signaled() && status.Signal() == syscall.SIGKILL {
		return told.WithHint("the system kills so when memory runs out: the kernel's log says")
	}
	return told
}

// reached is the last phase that a process told.
func reached(stderr []byte) string {
	lines := strings.Split(string(stderr), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if phase, ok := strings.CutPrefix(lines[i], phaseMark); ok {
			return fmt.Sprintf(" (in: %s)", phase)
		}
	}
	return ""
}
