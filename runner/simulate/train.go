package simulate

import "time"

// trainable reports whether a drafter has a micro-step that needs nobody else.
func (w *world) trainable(x *worker) bool {
	if w.committing || x.computing || x.arrived <= x.started || x.started >= (w.step+1)*w.micros {
		return false
	}
	return w.ranks == 1 || !w.last(x)
}

// serve gives a drafter its turn, for a micro-step or for the commit.
func (w *world) serve(n *node, x *worker) {
	if w.committing {
		w.commit(n, x)
		return
	}
	cost, last := w.cost(n, x), w.last(x)
	row := w.start(x)
	w.take(n, x)
	w.begin(n, x, Train, row)
	x.began = w.now
	end := w.now + cost
	w.at(end, func() *node {
		w.drop(n, x)
		w.end(x, end)
		x.finished++
		x.lately.Add(1, w.now-x.began)
		if last { // of the only rank
			w.vote(1)
		}
		w.prepared(x)
		return n
	})
}

// cost is how long the next micro-step of a drafter takes.
func (w *world) cost(n *node, x *worker) time.Duration {
	return w.takes(n, x, w.s.Trace.row(w.s.rowAt(w.drafters, n.index, x.started*w.drafters+int(x.id.Rank))).DrafterMS)
}

// start counts a micro-step and gives its row.
func (w *world) start(x *worker) int {
	row := x.started*w.drafters + int(x.id.Rank)
	x.started++
	return row
}

// reduce begins the step's last micro-step on all ranks together, once every
// turn of their devices is free. It ends for all when the slowest is done and
// the gradients are summed.
func (w *world) reduce() bool {
	if !w.reducing() || w.busy > 0 || w.holds(nil, 0) {
		return false
	}
	w.ready = 0
	longest := make([]time.Duration, 0, w.ranks)
	for i := range w.nodes {
		n := &w.nodes[i]
		_, drafters := w.all(n)
		for r := range drafters {
			longest = append(longest, w.cost(n, &drafters[r]))
		}
	}
	end := w.now + maxOf(longest) + w.sumTime
	for i := range w.nodes {
		n := &w.nodes[i]
		w.hold(n, true)
		_, drafters := w.all(n)
		for r := range drafters {
			x := &drafters[r]
			own := w.now + longest[i*w.drafters+r]
			row := w.start(x)
			n.grants++
			x.granted, x.computing = n.grants, true
			w.begin(n, x, Train, row)
			w.at(own, func() *node {
				w.end(x, own)
				w.begin(n, x, Sum, -1)
				return n
			})
		}
	}
	w.at(end, w.summed)
	return true
}

// hold takes every turn of the drafters' devices, or gives them back.
func (w *world) hold(n *node, all bool) {
	for d := range n.devices {
		switch dev := &n.devices[d]; {
		case dev.trains == 0:
		case all:
			dev.taken = dev.turns
			w.busy++
		default:
			dev.taken = 0
			w.busy--
		}
	}
}

// summed ends the last micro-step on all ranks.
func (w *world) summed() *node {
	for i := range w.nodes {
		n := &w.nodes[i]
		w.hold(n, false)
		_, drafters := w.all(n)
		for r := range drafters {
			x := &drafters[r]
			x.computing = false
			w.end(x, w.now)
			x.finished++
		}
	}
	w.vote(w.ranks)
	return nil
}

// vote brings votes, and the decision after the last of them and after the open
// image.
func (w *world) vote(n int) {
	if w.voted += n; w.voted < w.ranks {
		return
	}
	w.voted = 0
	w.at(max(w.now+ms(w.s.Trace.Costs.VoteMS), w.imageUntil), func() *node {
		w.committing = true
		return nil
	})
}

// commit applies the optimiser on one rank; the last opens the next step.
func (w *world) commit(n *node, x *worker) {
	x.sent = true
	w.take(n, x)
	w.begin(n, x, Commit, -1)
	end := w.now + w.takes(n, x, w.s.Trace.Costs.UpdateMS)
	w.at(end, func() *node {
		w.drop(n, x)
		w.end(x, end)
		if w.committed++; w.committed < w.ranks {
			return n
		}
		w.next()
		return nil
	})
}

// next opens the next step, and begins an image of the one before where it is due.
func (w *world) next() {
	w.committed, w.committing = 0, false
	w.step++
	if c := w.s.Trace.Costs; c.ImageEvery > 0 && w.step%c.ImageEvery == 0 {
		w.imageUntil = w.now + ms(c.ImageMS)
	}
	for i := range w.nodes {
		_, drafters := w.all(&w.nodes[i])
		for r := range drafters {
			drafters[r].sent = false
		}
	}
	w.result.Makespan = w.now
	w.result.Ends = append(w.result.Ends, w.now)
	w.recount()
}
