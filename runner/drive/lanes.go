package drive

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// Bounds of a lane.
const (
	// repliesAhead is how many replies of a life may wait for the loop: a flood
	// fills the lane and not the memory.
	repliesAhead = 64
	// endWait is how long a process may outlive its lane before it is killed
	// for it: one that dies by itself tells why.
	endWait = time.Second
	// laneWait is how long a lane may outlive its process, which only a stray
	// holder of its other end makes it do.
	laneWait = 2 * time.Second
)

// read posts a life's replies, a bounded number at a time; it ends with the lane.
func (l *Loop) read(id runner.Life, p Process) {
	room := make(chan struct{}, repliesAhead)
	for {
		seq, r, err := p.Receive()
		if err == nil {
			room <- struct{}{}
			l.inbox.post(func() {
				<-room
				l.replied(core.Replied{Life: id, Seq: seq, Reply: r})
			})
			continue
		}
		if runner.KindOf(err) == runner.Invalid {
			l.inbox.post(core.Unfit{Life: id, Cause: runner.CauseProtocol, Message: err.Error(),
				Hint: "the worker broke the lane's rules (proto/lane.md): its Python tree and this binary may differ in version"})
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
			l.c.debug("lane ended", id, err)
		}
		l.ended(id, p)
		return
	}
}

// ended posts the end of a lane whose process goes on. Where the process ends
// too, its reaping says all.
func (l *Loop) ended(id runner.Life, p Process) {
	late := time.NewTimer(endWait)
	defer late.Stop()
	select {
	case <-p.Done():
	case <-late.C:
		l.inbox.post(core.LaneClosed{Life: id})
	}
}

// replied passes a reply on. A handle is judged here, where the arenas are
// known, before it is repeated to a drafter.
func (l *Loop) replied(in core.Replied) {
	if p, ok := in.Reply.(runner.Produced); ok {
		err := error(runner.Errorf(runner.Invalid, "there is no arena %d", p.Handle.Arena))
		if a := l.arenas[p.Handle.Arena]; a != nil {
			err = arena.CheckHandle(p.Handle, p.Handle.Arena, a.slots, a.slotBytes)
		}
		if err != nil {
			l.handle(core.Unfit{Life: in.Life, Cause: runner.CauseProtocol, Message: fmt.Sprintf("produced row %d: %v", p.Row, err),
				Hint: "its slots and the supervisor's differ: the Python tree and this binary may differ in version"})
			return
		}
	}
	l.handle(in)
}

// send sends an order, and has a life killed that cannot be sent one.
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
	switch runner.KindOf(err) {
	case runner.Unavailable: // its lane is closed: the reader says so
	case runner.Exhausted: // it does not read
		l.inbox.post(core.Unfit{Life: a.Life, Cause: runner.CauseDeadline, Message: err.Error(), Hint: runner.HintOf(err)})
	default:
		l.inbox.post(core.Unfit{Life: a.Life, Cause: runner.CauseProtocol, Message: err.Error(), Hint: runner.HintOf(err)})
	}
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
	case runner.Image:
		if !o.Write {
			return nil, nil // it only confirms
		}
		r, err := l.image(a)
		if err != nil {
			return nil, err
		}
		return r.Writable(), nil
	case runner.Load, runner.Evaluate:
		if a.Image == 0 {
			return nil, nil
		}
		r, err := l.image(a)
		if err != nil {
			return nil, err
		}
		return r.ReadOnly(), nil
	}
	return nil, nil
}

func (l *Loop) image(a core.Send) (Region, error) {
	if r := l.images[a.Image]; r != nil {
		return r, nil
	}
	return nil, runner.Errorf(runner.Internal, "send %s: image %d: there is none", runner.OrderType(a.Order), a.Image)
}
