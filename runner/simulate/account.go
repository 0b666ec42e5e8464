package simulate

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Cause is what a worker's time goes to. The names are those of usage_s in a
// run's summary; sum is counted with train there.
type Cause uint8

// The causes.
const (
	Train   Cause = iota // a micro-step
	Commit               // the update
	Produce              // a row
	Sum                  // its share of a step is computed: slower ranks and the sum of gradients
	Vote                 // the others, their votes, or the decision
	Turn                 // all is there but the turn
	NoRow                // a drafter's next row has not come
	NoSlot               // a target's slots are all in use
	Nothing              // there is nothing to do
	causes
)

var causeNames = [causes]string{"train", "commit", "produce", "sum", "vote", "turn", "row", "slot", "nothing"}

// String gives the name.
func (c Cause) String() string { return causeNames[c] }

// Works reports whether it is work, and no wait.
func (c Cause) Works() bool { return c <= Produce }

// Span is what a worker did from one moment to another.
type Span struct {
	Node, Worker int // Worker by its place among the node's: targets, then drafters
	Cause        Cause
	From, To     time.Duration
	Row          int // of the run, from 0; -1: none
}

// Pull is a row's way out of its slot, which it keeps from the beginning of its
// making to To.
type Pull struct {
	Node, Target, Rank int // of the node
	Row                int
	From, To           time.Duration
}

// begin notes that a worker computes from now on.
func (w *world) begin(n *node, x *worker, c Cause, row int) {
	w.become(x, c)
	if !w.s.Trail {
		return
	}
	if row >= 0 {
		row = w.s.rowAt(w.drafters, n.index, row)
	}
	at := int(x.id.Rank)
	if x.id.Role == runner.Drafter {
		at += w.targets
	}
	x.span = len(w.result.Spans)
	w.result.Spans = append(w.result.Spans, Span{Node: n.index, Worker: at, Cause: c, From: w.now, Row: row})
}

// end notes that it does no more.
func (w *world) end(x *worker, at time.Duration) {
	if x.span >= 0 {
		w.result.Spans[x.span].To = at
		x.span = -1
	}
}

// become puts the time so far down to what was done.
func (w *world) become(x *worker, c Cause) {
	x.used[x.doing] += w.now - x.since
	x.doing, x.since = c, w.now
}

// account finds out why a node's workers do nothing.
func (w *world) account(n *node) {
	for i := range n.workers {
		x := &n.workers[i]
		if x.computing {
			continue
		}
		if c := w.idle(n, x, i); c != x.doing {
			w.become(x, c)
		}
	}
}

// idle says why a worker does nothing, as the core does.
func (w *world) idle(n *node, x *worker, i int) Cause {
	switch {
	case w.step >= w.s.Steps:
		return Nothing
	case w.wants(n, x, i):
		return Turn
	case x.id.Role == runner.Target && n.made == w.rows:
		return Nothing
	case x.id.Role == runner.Target && x.free > 0:
		return Turn // another was chosen for the row
	case x.id.Role == runner.Target:
		return NoSlot
	case w.committing || x.started >= (w.step+1)*w.micros:
		return Vote
	case x.arrived <= x.started:
		return NoRow
	case w.reducing():
		return Turn
	}
	return Vote
}

// finish adds everything up.
func (w *world) finish() {
	r := &w.result
	w.now = r.Makespan
	for i := range w.nodes {
		n := &w.nodes[i]
		for k := range n.workers {
			x := &n.workers[k]
			w.become(x, x.doing)
			r.Used = append(r.Used, x.used)
		}
	}
	r.Rows = w.rows * len(w.nodes)
	for k := range r.Rows {
		r.Tokens += w.s.Trace.row(k).Tokens
	}
	r.setup = w.s
}
