package core

import (
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/pace"
)

// worker is what the core knows of one worker and its present life.
type worker struct {
	id      runner.Worker
	device  string
	on      int // where the device stands among the core's
	life    life.Life
	killed  bool // a Kill of this life is out
	judged  bool // that Kill was for what the life did or failed to do
	fault   fault
	began   uint64            // deaths reaped when the life was started
	pending runner.Generation // whose death a verdict is awaited about; 0: none
	seq     uint64
	orders  []order   // not answered yet, oldest first; a lost life's until it is reaped
	heard   time.Time // last reply
	answers int       // so many so far
	usage   Usage     // of its time, over all lives
	done    Done      // in that time
	maps    []mapping

	slotBytes   uint64
	imageBytes  uint64
	parameters  runner.Digest // at step 0
	certificate runner.Certificate
	granted     uint64      // its last turn
	lately      pace.Lately // rows that it made; micro-steps but last ones

	// A drafter's.
	has     bool        // it holds a whole state ...
	at      runner.Step // ... at this step
	buffers [2]buffer
	micro   int  // next micro-step of the open step to be ordered
	sent    bool // its commit was ordered
	blame   int  // refusals since the last commit
	refused int  // pulls that failed, running

	// A target's.
	arena     runner.Arena // 0: none yet
	made      bool
	plain     bool // it keeps the texts of plain decoding
	evaluated bool // its last compute order was an evaluation
}

// order is an order that has not had its final reply.
type order struct {
	seq      uint64
	order    runner.Order
	sent     time.Time
	deadline time.Duration // from when it was sent, or the last sign before it; 0: none
	began    uint64        // deaths reaped when it was sent
	turn     turn
	void     bool // of an attempt that was given up
	taken    bool // of an image: the state is copied, and may change
	image    ImageID
}

// turn says what an order holds of its device.
type turn uint8

const (
	noTurn  turn = iota
	oneTurn      // one of the device's
	allTurn      // every one: a micro-step that reduces
)

// mapping is an arena that a life was told to map, or to create.
type mapping struct {
	arena runner.Arena
	done  bool
}

func (w *worker) current() runner.Life {
	return runner.Life{Worker: w.id, Generation: w.life.Generation}
}

// mapped reports whether the life has mapped an arena.
func (w *worker) mapped(a runner.Arena) bool {
	for _, m := range w.maps {
		if m.arena == a {
			return m.done
		}
	}
	return false
}

// waits reports whether an order that pick accepts has not been answered.
func (w *worker) waits(pick func(runner.Order) bool) bool {
	for i := range w.orders {
		if pick(w.orders[i].order) {
			return true
		}
	}
	return false
}

// first gives the order that the life is at: the oldest of its main thread, else
// the oldest of all. Pulls and aborts are taken by threads beside, and so is an
// image once the state is copied. The life has an order.
func (w *worker) first() *order {
	for i := range w.orders {
		o := &w.orders[i]
		if !o.taken && !is[runner.Pull](o.order) && !is[runner.Abort](o.order) {
			return o
		}
	}
	return &w.orders[0]
}

// is reports whether an order is of type T: waits(is[runner.Train]).
func is[T runner.Order](o runner.Order) bool {
	_, ok := o.(T)
	return ok
}

// find gives the worker of a life, or nil when that life is not the worker's
// present one: what comes from it then is stale and changes nothing.
func (c *Core) find(l runner.Life) *worker {
	if w := c.worker(l.Worker); w != nil && w.life.Generation == l.Generation {
		return w
	}
	return nil
}

// allReady reports whether every worker takes any order.
func (c *Core) allReady() bool { return c.ready == len(c.workers) }

func (c *Core) rank(r int) *worker { return &c.workers[c.ranks[r]] }

// send sends an order to a living worker.
func (c *Core) send(w *worker, o runner.Order, t turn, image ImageID) {
	w.seq++
	d := c.deadline(o)
	w.orders = append(w.orders, order{seq: w.seq, order: o, sent: c.now, deadline: d, began: c.reaped, turn: t, image: image})
	if at := c.now.Add(d); d > 0 && (c.soonest.IsZero() || at.Before(c.soonest)) {
		c.soonest = at
	}
	if t != noTurn {
		c.grants++
		w.granted = c.grants
	}
	c.do(Send{Life: w.current(), Seq: w.seq, Order: o, Image: image})
}

func (c *Core) deadline(o runner.Order) time.Duration {
	d := &c.cfg.Deadlines
	switch o := o.(type) {
	case runner.Train:
		if o.Last {
			return d.Step
		}
		return d.Order
	case runner.Join:
		return d.Step
	case runner.Abort:
		return d.Abort
	case runner.Image, runner.Load:
		return d.Image
	case runner.Evaluate:
		return d.Evaluate
	case runner.Drain:
		return d.Drain
	default:
		return d.Order
	}
}

// replied finds the order that a reply answers, and gives it to what waits
// for it.
func (c *Core) replied(in Replied) {
	w := c.find(in.Life)
	if w == nil || !w.life.State.Alive() {
		return
	}
	w.heard = c.now
	w.answers++
	for i := range w.orders {
		if w.orders[i].seq != in.Seq {
			continue
		}
		if c.early(w, &w.orders[i], in.Reply) {
			return
		}
		o := w.orders[i]
		w.orders = slices.Delete(w.orders, i, i+1)
		c.answer(w, o, in.Reply)
		return
	}
	c.kill(w, runner.CauseProtocol, "it answered "+runner.ReplyType(in.Reply)+" to an order that it does not have", "")
}

// early takes the first of an order's two replies: trained, which a vote
// follows, and taken, which saved follows. A second one is final, and does not
// fit.
func (c *Core) early(w *worker, o *order, r runner.Reply) bool {
	switch r := r.(type) {
	case runner.Trained:
		want, ok := o.order.(runner.Train)
		if !ok || !want.Last || o.turn == noTurn || !answers(r, want) {
			return false
		}
		o.turn = noTurn // the vote is still to come
		c.trained(w, r)
		return true
	case runner.Taken:
		want, ok := o.order.(runner.Image)
		if !ok || o.taken || r.Step != want.Step {
			return false
		}
		o.taken, o.sent = true, c.now
		return true
	}
	return false
}

// answers reports whether a trained is about its order's row.
func answers(t runner.Trained, o runner.Train) bool {
	return t.Step == o.Step && t.Micro == o.Micro && t.Row == o.Row
}

// answer takes a final reply.
func (c *Core) answer(w *worker, o order, r runner.Reply) {
	if f, ok := r.(runner.Failed); ok {
		c.failed(w, o, f)
		return
	}
	ok := false
	switch order := o.order.(type) {
	case runner.MapArena:
		var m runner.Mapped
		if m, ok = r.(runner.Mapped); ok {
			ok = c.mapped(w, order, m)
		}
	case runner.CreateArena:
		var m runner.Created
		if m, ok = r.(runner.Created); ok {
			ok = c.created(w, order, m)
		}
	case runner.Produce:
		var p runner.Produced
		if p, ok = r.(runner.Produced); ok {
			if ok = c.produced(w, order, p); ok {
				c.ended(w, producing)
			}
			w.lately.Add(int(order.Bucket), c.now.Sub(o.sent))
		}
	case runner.Pull:
		var p runner.Pulled
		if p, ok = r.(runner.Pulled); ok {
			ok = c.pulled(w, order, p)
		}
	case runner.Evaluate:
		var e runner.Evaluated
		if e, ok = r.(runner.Evaluated); ok {
			ok = c.evaluated(w, o, e)
		}
	case runner.Drain:
		_, ok = r.(runner.Drained)
	default:
		ok = c.stepAnswer(w, o, r)
	}
	if !ok {
		c.kill(w, runner.CauseProtocol, "it answered "+runner.OrderType(o.order)+" with a "+runner.ReplyType(r)+" that does not fit", "")
	}
}

// stepAnswer takes the replies to orders that name a step.
func (c *Core) stepAnswer(w *worker, o order, r runner.Reply) (ok bool) {
	switch order := o.order.(type) {
	case runner.Join:
		var j runner.Joined
		if j, ok = r.(runner.Joined); ok {
			ok = c.joined(w, o, j)
		}
	case runner.Train:
		switch r := r.(type) {
		case runner.Trained:
			if ok = answers(r, order) && !order.Last; ok {
				c.trained(w, r)
				w.lately.Add(1, c.now.Sub(o.sent))
			}
		case runner.Voted:
			ok = c.voted(w, o, r)
		}
	case runner.Commit:
		var m runner.Committed
		if m, ok = r.(runner.Committed); ok {
			if ok = c.committed(w, order, m); ok {
				c.ended(w, committing)
			}
		}
	case runner.Abort:
		var a runner.Aborted
		if a, ok = r.(runner.Aborted); ok {
			c.aborted(w, a)
		}
	case runner.Image:
		var s runner.Saved
		if s, ok = r.(runner.Saved); ok {
			ok = o.taken && c.saved(w, o, s)
		}
	case runner.Load:
		var l runner.Loaded
		if l, ok = r.(runner.Loaded); ok {
			ok = c.loaded(w, o, l)
		}
	}
	return ok
}
