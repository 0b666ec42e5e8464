package simulate

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// settle begins pulls and gives out a node's turns, until nothing more can
// begin. true: something began.
func (w *world) settle(n *node) (acted bool) {
	for w.err == nil {
		began := w.pulls(n)
		began = w.turn(n) || began
		if !began {
			return acted
		}
		acted = true
	}
	return acted
}

// reducing reports whether all ranks wait for the last micro-step, which
// nothing new may delay.
func (w *world) reducing() bool { return w.ranks > 1 && !w.committing && w.ready == w.ranks }

// kept reports whether nothing new begins on a device: all ranks wait for the last
// micro-step, and it can begin, or rows are not paced.
func (w *world) kept(n *node, d *device) bool {
	return w.s.hold == nil && w.reducing() && d.trains > 0 && (w.busy == 0 || !n.pairs)
}

// turn gives one turn to the worker that goes first on the first device that has
// one free.
func (w *world) turn(n *node) bool {
	n.pace.known = false
	wants := n.firsts
	clear(wants)
	for i := range n.workers {
		x := &n.workers[i]
		if !w.wants(n, x, i) || w.holds(n, i) {
			continue
		}
		if first := wants[x.device]; first == 0 || x.before(&n.workers[first-1]) {
			wants[x.device] = i + 1
		}
	}
	for i := range n.workers {
		d := &n.devices[n.workers[i].device]
		if wants[n.workers[i].device] != i+1 || d.taken >= d.turns || w.kept(n, d) {
			continue
		}
		if n.workers[i].id.Role == runner.Target {
			return w.give(n, i)
		}
		w.serve(n, &n.workers[i])
		return true
	}
	return false
}

// holds reports whether a search keeps a worker from beginning what it wants
// to, or, without a node, all ranks from beginning the last micro-step.
func (w *world) holds(n *node, i int) bool { return w.s.hold != nil && w.s.hold(w, n, i) }

// before reports whether a worker goes before another of its device: a drafter
// before a target, then the longest unserved.
func (x *worker) before(o *worker) bool {
	if x.id.Role != o.id.Role {
		return x.id.Role == runner.Drafter
	}
	return x.granted < o.granted
}

// wants reports whether a worker wants a turn.
func (w *world) wants(n *node, x *worker, i int) bool {
	if x.computing {
		return false
	}
	if x.id.Role == runner.Drafter {
		return w.committing && !x.sent || w.trainable(x)
	}
	if n.chosen >= 0 {
		return n.chosen == i
	}
	return n.made < w.rows && x.free > 0 && !w.paced(n, i)
}

// makers gives the targets that could make the lowest row that nobody made.
func (w *world) makers(n *node) (free []int) {
	n.free = n.free[:0]
	for i := range w.targets {
		if x := &n.workers[i]; !x.computing && x.free > 0 && !w.paced(n, i) {
			n.free = append(n.free, i)
		}
	}
	return n.free
}

// give lets a target make a row, after the assigner was asked where there is a
// choice; its choice may be another, or one that has to wait for its device.
func (w *world) give(n *node, i int) bool {
	free := w.makers(n)
	if n.chosen < 0 && w.s.Assign != nil && len(free) > 1 {
		row := w.s.rowAt(w.drafters, n.index, n.made)
		at, err := w.s.Assign(runner.Row(row+1), w.s.Trace.row(row).Tokens, w.question(n, free))
		if err == nil && (at < 0 || at >= len(free)) {
			err = runner.Errorf(runner.Invalid, "assign row %d: want one of %d free targets, got place %d", row+1, len(free), at)
		}
		if w.err = err; err != nil {
			return false
		}
		n.chosen = free[at]
		return true
	}
	n.chosen = -1
	w.produce(n, i)
	return true
}

// question describes the free targets to the assigner.
func (w *world) question(n *node, free []int) []Candidate {
	out := make([]Candidate, len(free))
	for k, f := range free {
		x := &n.workers[f]
		d := &n.devices[x.device]
		out[k] = Candidate{x.id, d.taken < d.turns && !w.kept(n, d)}
	}
	return out
}

// take and drop count a device's turns.
func (w *world) take(n *node, x *worker) {
	d := &n.devices[x.device]
	if d.taken++; d.taken == 1 && d.trains > 0 {
		w.busy++
	}
	n.grants++
	x.granted, x.computing = n.grants, true
}

func (w *world) drop(n *node, x *worker) {
	d := &n.devices[x.device]
	if d.taken--; d.taken == 0 && d.trains > 0 {
		w.busy--
	}
	x.computing = false
}

// takes is how long work takes on a device, its order included.
func (w *world) takes(n *node, x *worker, cost float64) time.Duration {
	return ms(cost*n.devices[x.device].factor) + ms(w.s.Trace.Costs.OrderMS)
}
