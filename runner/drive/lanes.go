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
func (l *Loop) read(id runner.Life, e *life, p Process) {
	room := make(chan struct{}, repliesAhead)
	for {
		seq, r, f, err := p.Receive()
		if err == nil {
			e.alive.Store(time.Now().UnixNano())
			room <- struct{}{}
			if !l.inbox.post(func() {
				<-room
				l.replied(core.Replied{Life: id, Seq: seq, Reply: r}, f)
			}) && f != nil {
				_ = f.Close() // nothing of it was used
			}
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
// known, before it is repeated to a drafter; and so is the descriptor of an
// arena. The core says whether that is kept; else it is closed again.
func (l *Loop) replied(in core.Replied, f *os.File) {
	var err error
	switch r := in.Reply.(type) {
	case runner.Produced:
		err = l.checkHandle(r)
	case runner.Created:
		l.offered, err = l.take(r, f)
	}
	if err != nil {
		l.handle(core.Unfit{Life: in.Life, Cause: runner.CauseProtocol, Message: err.Error(),
			Hint: "its slots and the supervisor's differ: the Python tree and this binary may differ in version"})
		return
	}
	l.handle(in)
	if l.offered != nil {
		l.closeRegion("arena of no use", l.offered)
		l.offered = nil
	}
}

func (l *Loop) checkHandle(p runner.Produced) error {
	err := error(runner.Errorf(runner.Invalid, "there is no arena %d", p.Handle.Arena))
	if a := l.arenas[p.Handle.Arena]; a != nil {
		err = arena.CheckHandle(p.Handle, p.Handle.Arena, a.slots, a.slotBytes)
	}
	if err != nil {
		return fmt.Errorf("produced row %d: %w", p.Row, err)
	}
	return nil
}

// take makes a region of what came with r; f is closed where it is of no use.
func (l *Loop) take(r runner.Created, f *os.File) (*slotted, error) {
	o, ok := l.creates[r.Arena]
	if !ok {
		_ = f.Close() // nothing of it was used
		return nil, runner.Errorf(runner.Invalid, "created arena %d, which nobody asked for", r.Arena)
	}
	region, err := l.c.Memory.TakeArena(o, f)
	if err != nil {
		return nil, fmt.Errorf("created arena %d: %w", r.Arena, err)
	}
	return &slotted{region, o.Slots, o.SlotBytes}, nil
}

// send sends an order, and has a life killed that cannot be sent one.
func (l *Loop) send(a core.Send) {
	e := l.lives[a.Life]
	if e == nil || e.process == nil {
		return
	}
	if o, ok := a.Order.(runner.CreateArena); ok {
		l.creates[o.Arena] = o
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
