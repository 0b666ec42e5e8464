package simulate

import "time"

// produce has target i make the lowest row that nobody made.
func (w *world) produce(n *node, i int) {
	x, row := &n.workers[i], n.made
	n.made++
	x.free--
	w.take(n, x)
	end := w.now + w.takes(n, x, w.s.Trace.row(w.s.rowAt(w.drafters, n.index, row)).TargetMS)
	w.begin(n, x, Produce, row)
	x.row, x.began = row, w.now
	w.at(end, func() *node {
		x := &n.workers[i]
		w.drop(n, x)
		w.end(x, end)
		n.where[row] = int32(i) + 1
		x.lately.Add(w.tokens(n, row), w.now-x.began)
		return n
	})
}

// pulls begins what drafters may pull.
func (w *world) pulls(n *node) (acted bool) {
	for r := range w.drafters {
		for w.pullable(n, r) {
			w.pull(n, r)
			acted = true
		}
	}
	return acted
}

// pullable reports whether rank r of the node may pull its next row: it lies
// full in a slot, a buffer is free, and at most one row is of a later step.
func (w *world) pullable(n *node, r int) bool {
	x := &n.workers[w.targets+r]
	row := x.pulled*w.drafters + r
	if row >= w.rows || n.where[row] == 0 || x.pulled-x.finished >= buffers {
		return false
	}
	return x.pulled <= w.open()*w.micros
}

// buffers is how many rows a drafter can hold.
const buffers = 2

// open is how many steps are decided, and the one after them: the first row of
// the step after that may lie ready, and no other.
func (w *world) open() int {
	if w.committing {
		return w.step + 2
	}
	return w.step + 1
}

// pull copies rank r's next row out of its slot, after what its copy thread has
// before it.
func (w *world) pull(n *node, r int) {
	x := &n.workers[w.targets+r]
	row := x.pulled*w.drafters + r
	target := int(n.where[row]) - 1
	from := &n.workers[target]
	n.where[row] = 0
	x.pulled++
	cost := w.s.Trace.Costs.HandOffMS
	if from.device == x.device {
		cost = w.s.Trace.Costs.HandOffLocalMS
	}
	end := max(w.now, x.copyFree) + ms(cost) + ms(w.s.Trace.Costs.OrderMS)
	x.copyFree = end
	if w.s.Trail {
		w.result.Pulls = append(w.result.Pulls, Pull{Node: n.index, Target: target, Rank: r, Row: w.s.rowAt(w.drafters, n.index, row), From: w.now, To: end})
	}
	w.at(end, func() *node {
		from.free++
		if x.arrived++; x.arrived == x.started+1 { // else it was counted for the row before
			w.prepared(x)
		}
		return n
	})
}

// prepared counts a rank that waits for its last micro-step alone.
func (w *world) prepared(x *worker) {
	if !w.committing && !x.computing && w.last(x) && x.arrived > x.started {
		w.ready++
	}
}

// last reports whether a rank's next micro-step is the step's last.
func (w *world) last(x *worker) bool { return x.started == (w.step+1)*w.micros-1 }

// recount counts the ranks that are ready at the beginning of a step.
func (w *world) recount() {
	w.ready = 0
	for i := range w.nodes {
		_, drafters := w.all(&w.nodes[i])
		for r := range drafters {
			w.prepared(&drafters[r])
		}
	}
}

func maxOf(a []time.Duration) (m time.Duration) {
	for _, t := range a {
		m = max(m, t)
	}
	return m
}
