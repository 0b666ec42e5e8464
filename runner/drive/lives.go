package drive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// life is what the loop keeps of one life.
type life struct {
	cancel  context.CancelCauseFunc // of its launch and warm-up
	process Process                 // nil until it is launched
	killed  *core.Kill              // asked before the process was there
}

// launch starts a life in a goroutine, which ends when the life is configured
// or did not come to be.
func (l *Loop) launch(id runner.Life) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	e := &life{cancel: cancel}
	l.lives[id] = e
	l.goEdge(func() {
		p, err := l.c.Launcher.Launch(ctx, id)
		if err != nil {
			l.inbox.post(core.Exited{Life: id, Failure: failureOf(id, err)})
			return
		}
		if l.c.Started != nil {
			l.c.Started(id, p)
		}
		if !l.inbox.post(func() { l.launched(id, e, p) }) {
			p.Kill(runner.CauseKilled, "the run is over", "")
			<-p.Done()
		}
	})
}

// launched watches a configured life. From the loop.
func (l *Loop) launched(id runner.Life, e *life, p Process) {
	e.process = p
	l.goEdge(func() { l.reap(id, p) })
	l.goEdge(func() { l.read(id, p) })
	l.goEdge(func() { l.watch(id, p) })
	if e.killed != nil {
		p.Kill(e.killed.Cause, e.killed.Message, e.killed.Hint)
		return
	}
	f := p.Facts()
	l.handle(core.Launched{Life: id, SlotBytes: f.SlotBytes, ImageBytes: f.ImageBytes, Parameters: f.Parameters})
}

// reap posts a life's end; it ends with the process.
func (l *Loop) reap(id runner.Life, p Process) {
	<-p.Done()
	report := p.Report()
	l.inbox.post(func() {
		delete(l.lives, id)
		if l.outcome == nil {
			l.handle(core.Exited{Life: id, Failure: report})
		}
	})
}

// read posts a life's replies; it ends with the lane.
func (l *Loop) read(id runner.Life, p Process) {
	for {
		seq, r, err := p.Receive()
		if err == nil {
			l.inbox.post(core.Replied{Life: id, Seq: seq, Reply: r})
			continue
		}
		if runner.KindOf(err) == runner.Invalid {
			l.inbox.post(core.Unfit{Life: id, Cause: runner.CauseProtocol, Message: err.Error(),
				Hint: "the worker broke the lane's rules (proto/lane.md): its Python tree and this binary may differ in version"})
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
			l.c.debug("lane ended", id, err)
		}
		l.inbox.post(core.LaneClosed{Life: id})
		return
	}
}

// watch looks at a life's sign of life; it ends with the process, or after it
// has found it dead.
func (l *Loop) watch(id runner.Life, p Process) {
	every := time.NewTicker(l.c.SignOfLife / 5)
	defer every.Stop()
	for {
		select {
		case <-p.Done():
			return
		case <-every.C:
			if age := p.SignAge(); age > l.c.SignOfLife {
				p.Dump()
				l.inbox.post(core.Unfit{Life: id, Cause: runner.CauseDeadline,
					Message: fmt.Sprintf("no sign of life for %s: the process is stopped or stuck in the kernel", age.Round(time.Millisecond)),
					Hint:    "look at the machine's kernel log and at who may have stopped the process"})
				return
			}
		}
	}
}

// warmUp runs a life's warm-up in a goroutine, which ends with the call: the
// life's death or the end of its context ends that.
func (l *Loop) warmUp(id runner.Life) {
	e := l.lives[id]
	if e == nil || e.process == nil {
		return // it died meanwhile; its end is in the inbox
	}
	p := e.process
	ctx, cancel := context.WithCancelCause(l.ctx)
	e.cancel = cancel
	l.goEdge(func() {
		c, err := p.WarmUp(ctx, func(phase string, done, total uint32) {
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

func (l *Loop) send(a core.Send) {
	e := l.lives[a.Life]
	if e == nil || e.process == nil {
		return
	}
	f, err := l.descriptor(a)
	if err == nil {
		err = e.process.Send(a.Seq, a.Order, f)
	}
	if err == nil {
		return
	}
	if runner.KindOf(err) == runner.Unavailable { // it is gone: its end is on the way
		l.inbox.post(core.LaneClosed{Life: a.Life})
		return
	}
	l.inbox.post(core.Unfit{Life: a.Life, Cause: runner.CauseProtocol, Message: err.Error(), Hint: runner.HintOf(err)})
}

// descriptor finds what travels with an order, or nil.
func (l *Loop) descriptor(a core.Send) (*os.File, error) {
	switch o := a.Order.(type) {
	case runner.MapArena:
		r := l.arenas[o.Arena]
		if r == nil {
			return nil, runner.Errorf(runner.Internal, "send arena %d: there is none", o.Arena)
		}
		if o.Write {
			return r.Writable(), nil
		}
		return r.ReadOnly(), nil
	default:
		i, image := o.(runner.Image)
		if a.Image == 0 || image && !i.Write {
			return nil, nil
		}
		r := l.images[a.Image]
		if r == nil {
			return nil, runner.Errorf(runner.Internal, "send %s: image %d: there is none", runner.OrderType(o), a.Image)
		}
		if image {
			return r.Writable(), nil
		}
		return r.ReadOnly(), nil
	}
}

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
	if a.Cause == runner.CauseDeadline {
		e.process.Dump()
	}
	e.process.Kill(a.Cause, a.Message, a.Hint)
	e.cancel(why)
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
