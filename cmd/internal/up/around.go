package up

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/telemetry"
)

// What bounds the end: how long the socket's readers and the events may take.
const (
	closeWait   = 3 * time.Second
	statusEvery = time.Second
	eventQueue  = 4096
)

// around is what stands around the run while it works, closed in reverse.
type around struct {
	u      *up
	ctx    context.Context
	cancel context.CancelFunc
	undo   []func() error
}

// open starts log, events, socket, status file, signals and view. After an
// error nothing of it is left.
func (u *up) open(ctx context.Context) (*around, error) {
	a := &around{u: u}
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for _, step := range []func() error{a.log, a.events, a.deaths, a.status, a.socket, a.signals, a.statusFile, a.show} {
		if err := step(); err != nil {
			return nil, errors.Join(err, a.close())
		}
	}
	return a, nil
}

// close ends everything in the reverse order of its start, each in a bound.
func (a *around) close() error {
	a.cancel()
	var all []error
	for i := len(a.undo) - 1; i >= 0; i-- {
		all = append(all, a.undo[i]())
	}
	return errors.Join(all...)
}

func (a *around) atEnd(f func() error) { a.undo = append(a.undo, f) }

// background runs f until the end; close waits for it.
func (a *around) background(f func(ctx context.Context)) {
	done := make(chan struct{})
	go func() { // stops with a.ctx; waited for by close
		defer close(done)
		f(a.ctx)
	}()
	a.atEnd(func() error { <-done; return nil })
}

func (a *around) log() error {
	f, err := os.OpenFile(a.u.dir.join("logs", "supervisor.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return writable(a.u.dir.path, err)
	}
	a.u.log = hclog.New(&hclog.LoggerOptions{Name: "dflash-runner", Output: f, Level: hclog.LevelFromString(a.u.config.Log.Level), JSONFormat: true})
	a.atEnd(f.Close)
	if hasJournal(a.u.dir.path) {
		return nil // the configuration that began the run stays until this one is known to fit
	}
	return a.u.writeConfig()
}

func (a *around) events() error {
	r, err := telemetry.NewRecorder(a.u.dir.join("events.jsonl"), a.u.log, eventQueue)
	if err != nil {
		return err
	}
	a.u.events = r
	if p, _ := a.u.config.Scheduler.Plugin(); p != nil {
		a.u.teller.Store(&teller{})
	}
	a.u.metrics = telemetry.Metrics(a.u.Status, r)
	a.atEnd(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		return r.Close(ctx)
	})
	if os.Getenv(faultVariable) != "" {
		a.u.warn("fault injection", faultVariable+" is set: workers misbehave on purpose")
	}
	return nil
}

// deaths goes on with the reports of earlier lives.
func (a *around) deaths() error {
	d, torn, err := openDeaths(a.u.dir.join(failuresFile), func(err error) { go a.u.warn("failures", err.Error()) })
	if err != nil {
		return err
	}
	if torn > 0 {
		a.u.note("failures cut", itoa(torn)+" reports in "+failuresFile+" cannot be read and are left out")
	}
	a.u.deaths = d
	a.atEnd(d.close)
	return nil
}

// status fills in what stays the same.
func (a *around) status() error {
	self, err := admin.Self()
	if err != nil {
		return err
	}
	path, err := admin.SocketPath(a.u.dir.path)
	if err != nil {
		return err
	}
	a.u.mu.Lock()
	defer a.u.mu.Unlock()
	a.u.last = admin.Status{Name: a.u.dir.name, State: admin.Starting, Directory: a.u.dir.path, Socket: path, Process: self, StartedAt: a.u.started,
		Gate: admin.GateStatus{Width: a.u.config.WarmUp.Width}, Failures: a.u.deaths.with(nil)}
	return nil
}

func (a *around) socket() error {
	l, err := admin.Listen(a.u.dir.path)
	if err != nil {
		return err
	}
	s := admin.NewServer(a.u)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // ends with Shutdown, which close calls
	a.atEnd(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		return errors.Join(s.Shutdown(ctx), <-served)
	})
	return nil
}

func (a *around) signals() error {
	wait := a.u.watchSignals(a.ctx)
	a.atEnd(func() error { wait(); return nil })
	return nil
}

// statusFile keeps status.json fresh, for readers without the socket.
func (a *around) statusFile() error {
	if err := admin.WriteStatus(a.u.dir.path, a.u.Status()); err != nil {
		return err
	}
	a.background(func(ctx context.Context) {
		every := time.NewTicker(statusEvery)
		defer every.Stop()
		bad := false
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
				err := admin.WriteStatus(a.u.dir.path, a.u.Status())
				if err != nil && !bad {
					a.u.warn("status file", err.Error())
				}
				bad = err != nil
			}
		}
	})
	if a.u.options.Ready != nil {
		a.u.options.Ready(a.u.dir.path)
	}
	return nil
}

func (a *around) show() error {
	if a.u.options.Show != nil {
		a.background(func(ctx context.Context) {
			if err := a.u.options.Show(ctx, a.u.Status, func(quick bool) { a.u.stop(quick, "interrupted") }); err != nil {
				a.u.observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "output lost", Message: err.Error() + "; the run goes on"})
			}
		})
	}
	return nil
}

// end writes summary and last status. The socket still answers.
func (u *up) end(f core.Finish, hint, next string) error {
	u.board.end(f.Code)
	u.refresh(context.Background())
	s := u.summary(f, hint)
	s.Next = next
	u.mu.Lock()
	u.state = admin.Ended
	l := &u.last
	l.State, l.Exit, l.ExitReason, l.Hint, l.UpdatedAt = admin.Ended, &f.Code, f.Reason, hint, time.Now()
	l.Stages, l.Stage = s.Stages, ""
	last := *l
	u.mu.Unlock()
	err := admin.WriteSummary(u.dir.path, s)
	err = errors.Join(err, admin.WriteStatus(u.dir.path, last))
	err = errors.Join(err, u.kernels.Close())
	for _, l := range u.held {
		err = errors.Join(err, l.Close())
	}
	if u.environment != nil {
		err = errors.Join(err, u.environment.Close())
	}
	return err
}

// observe takes an event from any goroutine.
func (u *up) observe(e runner.Event) {
	u.events.Observe(e)
	u.deaths.observe(e)
	u.teller.Load().observe(e)
}

// note tells of a small thing for people.
func (u *up) note(name, message string) {
	u.observe(runner.Event{At: time.Now(), Level: runner.Info, Name: name, Message: message})
}

// warn tells of something that is worse than it should be, and keeps it for
// status, health and summary.
func (u *up) warn(subject, message string) {
	u.mu.Lock()
	u.warnings = append(u.warnings, admin.Reason{Name: subject, Detail: message})
	u.mu.Unlock()
	u.observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: subject, Message: message})
}

func hexOf(d runner.Digest) string { return hex.EncodeToString(d[:]) }
