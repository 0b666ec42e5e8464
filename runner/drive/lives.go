package drive

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/hang"
)

// life is what the loop keeps of one life.
type life struct {
	cancel  context.CancelCauseFunc // of its launch, or later its warm-up
	process Process                 // nil until it is launched
	killed  *core.Kill              // asked before the process was there
	alive   atomic.Int64            // when it was last known to get on, in Unix nanoseconds
	track   hang.Track              // of looks at its process
}

// launch starts a life in a goroutine, which ends when the life is configured
// or did not come to be.
func (l *Loop) launch(id runner.Life, device string) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	e := &life{cancel: cancel}
	e.alive.Store(time.Now().UnixNano())
	l.lives[id] = e
	l.goEdge(func() {
		p, err := l.c.Launcher.Launch(ctx, id, device)
		if err != nil {
			l.inbox.post(func() { l.exited(id, e, failureOf(id, err)) })
			return
		}
		if l.c.Started != nil {
			l.c.Started(id, p)
		}
		if !l.inbox.post(func() { l.launched(id, e, p) }) {
			p.Kill(core.Kill{Life: id, Cause: runner.CauseKilled, Message: "the run is over"})
			<-p.Done()
		}
	})
}

// launched watches a configured life. From the loop.
func (l *Loop) launched(id runner.Life, e *life, p Process) {
	e.process = p
	read := make(chan struct{})
	l.goEdge(func() {
		defer close(read)
		l.read(id, e, p)
	})
	l.goEdge(func() { l.reap(id, e, p, read) })
	l.goEdge(func() { l.watch(id, e, p) })
	if e.killed != nil {
		k := *e.killed
		l.goEdge(func() { p.Kill(k) })
		return
	}
	f := p.Facts()
	l.handle(core.Launched{Life: id, SlotBytes: f.SlotBytes, ImageBytes: f.ImageBytes, Parameters: f.Parameters})
}

// reap posts a life's end, after the last that its lane brought; it ends with
// the process and its reader.
func (l *Loop) reap(id runner.Life, e *life, p Process, read <-chan struct{}) {
	<-p.Done()
	late := time.NewTimer(laneWait)
	defer late.Stop()
	select {
	case <-read:
	case <-late.C:
		p.CloseLane()
		<-read
	}
	report := p.Report()
	l.inbox.post(func() { l.exited(id, e, report) })
}

// exited forgets a life and tells the core. A launch that a Kill ended is told
// of with the kill's reason: the launcher only knows that it was given up.
func (l *Loop) exited(id runner.Life, e *life, f *runner.Failure) {
	e.cancel(errReaped)
	delete(l.lives, id)
	l.worse(id, nil)
	if k := e.killed; k != nil && f != nil && f.Cause == runner.CauseKilled {
		told := *f
		told.Cause, told.Message, told.Hint, told.ForcedBySelf = k.Cause, k.Message, k.Hint, true
		f = &told
	}
	l.handle(core.Exited{Life: id, Failure: f})
}

// warmUp runs a life's warm-up in a goroutine, which ends with the call: the
// life's death or the end of its context ends that.
func (l *Loop) warmUp(id runner.Life) {
	e := l.lives[id]
	if e == nil || e.process == nil {
		return // it died meanwhile; its end is in the inbox
	}
	p := e.process
	e.cancel(errConfigured)
	ctx, cancel := context.WithCancelCause(l.ctx)
	e.cancel = cancel
	l.goEdge(func() {
		e.alive.Store(time.Now().UnixNano())
		c, err := p.WarmUp(ctx, func(phase string, done, total uint32) {
			e.alive.Store(time.Now().UnixNano())
			if l.c.Warming != nil {
				l.c.Warming(id, phase, done, total)
			}
		})
		if err != nil {
			l.inbox.post(core.Unfit{Life: id, Cause: runner.CauseCert, Message: err.Error(), Hint: runner.HintOf(err)})
			return
		}
		l.inbox.post(core.Certified{Life: id, Certificate: c})
	})
}

// kill ends a life in a goroutine, which ends with the call; what the life is
// waited for in is given up after it, so that its stacks show where it hung.
func (l *Loop) kill(a core.Kill) {
	e := l.lives[a.Life]
	if e == nil {
		return
	}
	why := fmt.Errorf("killed: %s", a.Message)
	if e.process == nil {
		e.killed = &a
		e.cancel(why)
		return
	}
	p, cancel := e.process, e.cancel
	l.goEdge(func() {
		p.Kill(a)
		cancel(why)
	})
}

// failureOf makes the report of a life that never came to be.
func failureOf(id runner.Life, err error) *runner.Failure {
	var d *Died
	if errors.As(err, &d) {
		f := d.Failure
		return &f
	}
	return &runner.Failure{Worker: id.Worker, Generation: id.Generation, Role: id.Worker.Role, Cause: runner.CauseLaunch,
		Message: err.Error(), Hint: runner.HintOf(err), At: time.Now(), OOMKilled: "unknown", LastSignMS: -1}
}

// debug tells of what only a developer looks for.
func (c *Config) debug(name string, id runner.Life, err error) {
	w := id.Worker
	c.Observe(runner.Event{At: time.Now(), Level: "debug", Name: name, Worker: &w, Generation: id.Generation, Message: err.Error()})
}
