package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dflash-runner/dflash-runner/runner"
)

// dumpWait bounds the wait for a worker's stacks, endWait the wait for the end
// of a process whose connection broke, which usually is ending.
const (
	dumpWait = 2 * time.Second
	endWait  = 2 * time.Second
)

// step runs one part of a worker's start, within limit (0: only ctx's own). A
// worker that takes longer is asked for its stacks and killed.
func (p *Process) step(ctx context.Context, phase string, limit time.Duration, run func(context.Context) error) error {
	p.setPhase(phase)
	began, timed := time.Now(), ctx
	if limit > 0 {
		var cancel context.CancelFunc
		timed, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	// what runs sees no deadline: gRPC would hand it to the worker, whose server
	// may then answer for a worker that hangs
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	expired := make(chan struct{})
	stop := context.AfterFunc(timed, func() { // ends within dumpWait; waited for below
		defer close(expired)
		p.expire(ctx, time.Since(began))
		cancel()
	})
	err := run(own)
	if !stop() {
		<-expired
		return runner.Errorf(runner.Unavailable, "%s: %w", phase, timed.Err())
	}
	if err == nil {
		return nil
	}
	p.blame(phase, err)
	return err
}

// expire ends a worker whose time is over, or whose caller gave up.
func (p *Process) expire(ctx context.Context, after time.Duration) {
	if errors.Is(ctx.Err(), context.Canceled) {
		p.Kill(runner.CauseKilled, fmt.Sprintf("given up by the supervisor during %s", p.nowDoing()), "")
		return
	}
	p.dumpAndKill(fmt.Sprintf("no answer to %s within %s", p.nowDoing(), after.Round(time.Millisecond)),
		"a machine under load may need a longer limit")
}

// The hint of a worker that was too late begins with one of these.
const (
	noStacks = "it showed no stacks, as one that is stopped or has not begun to run Python does not"
	stacks   = "the stacks at that time are in the report"
	spied    = "it showed no stacks; those that py-spy read are in the report"
)

// dumpAndKill asks for stacks, waits for them in a bound, and kills. The hint
// begins with whether there are any.
func (p *Process) dumpAndKill(message, hint string) {
	was := verdict{runner.CauseDeadline, message, andHint(noStacks, hint)}
	p.condemn(was)
	seen, _ := p.log.dumps()
	if p.Dump() {
		ctx, cancel := context.WithTimeout(context.Background(), dumpWait)
		defer cancel()
		p.log.awaitDump(ctx, seen, p.live().exited)
	}
	if lines, _ := p.log.dumps(); lines > seen {
		p.amend(was, andHint(stacks, hint))
	} else if c := p.live(); c != nil {
		if said, err := spy(context.Background(), p.spec.Argv[0], c.pid); err == nil {
			p.tell(said)
			p.amend(was, andHint(spied, hint))
		} else {
			p.amend(was, andHint(noStacks+" ("+err.Error()+")", hint))
		}
	}
	p.Kill(runner.CauseDeadline, message, hint)
}

// andHint adds a hint, where there is one.
func andHint(first, then string) string {
	if then == "" {
		return first
	}
	return first + "; " + then
}

// blame records what an error means for the report: that the worker answered
// wrongly or not at all. Where it ended by itself, how it ended counts more.
func (p *Process) blame(phase string, err error) {
	c := p.live()
	if c == nil {
		return
	}
	if mayBeEnding(err) { // wait, so as not to shoot a process that is telling why
		late := time.NewTimer(endWait)
		defer late.Stop()
		select {
		case <-c.exited:
		case <-late.C:
		}
	}
	// recorded in any case: it counts only where our signal ended the process
	p.condemn(verdictOf(phase, err))
}

// mayBeEnding reports whether err is what a process's end looks like from here.
func mayBeEnding(err error) bool {
	var own *runner.Error
	var refused *refusal
	switch {
	case errors.As(err, &own):
		return own.Kind == runner.Unavailable
	case errors.As(err, &refused):
		return refused.kind == "" && status.Code(refused.err) == codes.Unavailable
	}
	return errors.Is(err, io.EOF)
}

// verdictOf tells a worker that said no from one that spoke wrongly.
func verdictOf(phase string, err error) verdict {
	var own *runner.Error
	if errors.As(err, &own) {
		return verdict{runner.CauseProtocol, own.Msg, runner.HintOf(err)}
	}
	var refused *refusal
	if !errors.As(err, &refused) {
		refused = &refusal{err: err}
	}
	message := clean(status.Convert(refused.err).Message(), messageWidth)
	switch code := status.Code(refused.err); {
	case refused.kind != "": // the worker's own words
	case code == codes.Unimplemented, code == codes.Unavailable, code == codes.Canceled,
		code == codes.ResourceExhausted && strings.Contains(message, "larger than max"):
		return verdict{runner.CauseProtocol, fmt.Sprintf("%s: %s", phase, message),
			"the Python package and this binary are of different versions, or this is a bug: keep the log"}
	}
	if line := cudaLine(evidence{Tail: []string{message}}); line != "" {
		return verdict{runner.CauseCUDA, line, hintOr(refused.hint, cudaHint(line))}
	}
	if refused.kind == "" { // the worker's own words begin with what it was doing
		message = phase + ": " + message
	}
	hint := pythonHint(message)
	if refused.kind == runner.Invalid.String() {
		hint = "the worker refused what it was given: check the configuration, the target's directory and the data"
	}
	return verdict{runner.CausePython, message, hintOr(refused.hint, hint)}
}
