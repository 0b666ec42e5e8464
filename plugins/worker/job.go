package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/runner"
)

// jobLine bounds one line of a job's stdout, in bytes.
const jobLine = 1 << 20

// JobSpec says which short-lived program to run: it reads Stdin and prints
// lines on stdout.
type JobSpec struct {
	Argv    []string
	Env     []string // set by the supervisor; wins over what is inherited
	Dir     string
	Stdin   []byte
	LogPath string // raw stderr; "" keeps none
	Logger  hclog.Logger
	Grace   time.Duration // from SIGTERM to SIGKILL, when ctx is done
}

// JobError is a job that did not end with code 0; Failure is its report, whose
// worker is empty.
type JobError struct {
	Failure runner.Failure
	Err     error
}

// Error gives the message; the hint is in Failure.
func (e *JobError) Error() string { return e.Err.Error() }

// Unwrap gives the error with its kind and hint.
func (e *JobError) Unwrap() error { return e.Err }

// RunJob runs a job as a worker is run (own process group, death pipe, bounded
// lines, the kill ladder) and calls onLine, from one goroutine, for every line
// of its stdout, the slice being valid during the call only. It returns when
// the job and all its descendants are gone: nil where it ended with code 0, else
// a *JobError. When ctx is done it ends the job.
func RunJob(ctx context.Context, spec JobSpec, onLine func([]byte)) error {
	if len(spec.Argv) == 0 || spec.Logger == nil || spec.Grace <= 0 {
		return runner.Errorf(runner.Invalid, "run job: want a command, a logger and a grace of more than 0")
	}
	log, err := openLog(spec.LogPath, logLimit, spec.Logger)
	if err != nil {
		return err
	}
	defer log.close()
	var long verdict // set by the reader of stdout, read after it ended
	var c *child
	ready := make(chan struct{}) // closed once c is set
	c, err = startChild(childSpec{
		argv: spec.Argv, env: Environment(os.Environ(), spec.Env), dir: spec.Dir, nonce: "job:" + rand.Text(),
		stdin: true, lineLimit: jobLine, stderr: log.stderr,
		stdout: func(line []byte, cut bool) {
			if !cut {
				onLine(line)
				return
			}
			long = verdict{runner.CauseProtocol, fmt.Sprintf("printed a line of more than %d bytes", jobLine), ""}
			<-ready
			c.signal(syscall.SIGKILL, true)
		},
	})
	if err != nil {
		return jobError(evidence{Phase: "start", StartErr: err, LastSign: -1}, log)
	}
	close(ready)
	fed := make(chan error, 1)
	go func() { fed <- feed(c, spec.Stdin) }() // ends when all is written or the job has ended
	e := evidence{Phase: "the job", LastSign: -1, Verdict: endJob(ctx, c, spec.Grace)}
	<-c.done
	if err := <-fed; err != nil {
		spec.Logger.Debug("job did not read all of its input", "err", err.Error())
	}
	e.Status, e.Forced = c.ended()
	e.Asked = e.Verdict != nil || e.Status.Code == 0
	if long.Cause != "" {
		e.Verdict = &long
	}
	return jobError(e, log)
}

// feed writes the job's input and closes its stdin.
func feed(c *child, input []byte) error {
	stop := make(chan struct{})
	defer close(stop)
	go func() { // frees a write to a pipe that somebody else may still hold
		select {
		case <-c.exited:
			c.stdin.SetWriteDeadline(time.Now())
		case <-stop:
		}
	}()
	_, err := c.stdin.Write(input)
	return errors.Join(err, c.stdin.Close())
}

// endJob waits for the job's end, and brings it about when ctx is done.
func endJob(ctx context.Context, c *child, grace time.Duration) *verdict {
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
	}
	v := &verdict{runner.CauseKilled, "ended by the supervisor", ""}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		v = &verdict{runner.CauseDeadline, "did not end in time", "give the job a longer limit"}
	}
	c.signal(syscall.SIGTERM, true)
	c.signal(syscall.SIGCONT, true)
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case <-c.exited:
	case <-late.C:
		c.signal(syscall.SIGKILL, true)
	}
	return v
}

// lacksRoom tells a program that could not be started for now from one that is wrong.
func lacksRoom(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM)
}

// jobError turns the evidence into the error, nil for a job that did its work.
func jobError(e evidence, log *lifeLog) error {
	if e.Status.At.IsZero() {
		e.Status.At = time.Now()
	}
	e.Tail, e.Noise, e.Trace = log.kept()
	f := report(e)
	if e.Verdict != nil { // we ended it, however it then went
		f.Cause, f.Message, f.Hint = e.Verdict.Cause, e.Verdict.Message, e.Verdict.Hint
	}
	if f.Cause == "" {
		return nil
	}
	kind := runner.Unavailable
	switch f.Cause {
	case runner.CauseKilled:
		kind = runner.Canceled
	case runner.CauseLaunch:
		if kind = runner.Invalid; lacksRoom(e.StartErr) {
			kind = runner.Unavailable
		}
	}
	return &JobError{f, runner.Errorf(kind, "run job: %s", f.Message).WithHint("%s", f.Hint)}
}
