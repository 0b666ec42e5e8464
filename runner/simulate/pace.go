package simulate

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pace"
)

// pacing is what a node's targets go by until something begins.
type pacing struct {
	known bool
	on    bool // rows of later steps are paced
	until time.Duration
	ranks []pace.Rank
}

// paced reports whether target i lets the next row of the node be; see package
// pace.
func (w *world) paced(n *node, i int) bool {
	if w.s.hold != nil || !n.pairs || n.devices[n.workers[i].device].trains == 0 {
		return false
	}
	if !n.pace.known {
		n.pace.known, n.pace.on = true, w.pace(n)
	}
	if !n.pace.on {
		return false
	}
	_, drafters := w.all(n)
	for r := range drafters {
		if drafters[r].device != n.workers[i].device {
			continue
		}
		if n.pace.ranks[r].Row == 0 {
			return w.reducing() // nobody knows how long one takes
		}
		return n.pace.ranks[r].Holds(n.pace.until)
	}
	return false
}

// pace finds out how ranks stand, and until when rows fit. false: rows of the open
// step are still to be begun, or its last micro-step was.
func (w *world) pace(n *node) bool {
	if w.committing || w.step >= w.s.Steps || n.made < (w.step+1)*w.micros*w.drafters {
		return false
	}
	_, drafters := w.all(n)
	n.pace.ranks = n.pace.ranks[:0]
	for r := range drafters {
		if drafters[r].started == (w.step+1)*w.micros {
			return false
		}
		n.pace.ranks = append(n.pace.ranks, w.rankOf(n, r))
	}
	n.pace.until = pace.Until(n.pace.ranks)
	return true
}

// rankOf says how rank r of a node stands, by what work took lately.
func (w *world) rankOf(n *node, r int) (out pace.Rank) {
	x := &n.workers[w.targets+r]
	out.Free = w.rest(n, x)
	for i := range w.targets {
		if t := &n.workers[i]; t.device == x.device {
			out.Free = max(out.Free, w.rest(n, t))
			out.Slots, out.Row = t.free, t.lately.Takes(w.tokens(n, min(n.made, w.rows-1)))
		}
	}
	out.Ready = out.Free
	takes := x.lately.Takes(1)
	for m := x.started; m < (w.step+1)*w.micros; m++ {
		if row := m*w.drafters + r; m >= x.arrived {
			out.Ready = max(out.Ready, w.made(n, row))
		}
		if m < (w.step+1)*w.micros-1 {
			out.Ready, out.Left = out.Ready+takes, out.Left+takes
		}
	}
	return out
}

// made is how long a row that was begun is still made.
func (w *world) made(n *node, row int) time.Duration {
	for i := range w.targets {
		if x := &n.workers[i]; x.computing && x.row == row {
			return w.rest(n, x)
		}
	}
	return 0
}

// rest is what is to come of what a worker computes.
func (w *world) rest(n *node, x *worker) time.Duration {
	if !x.computing {
		return 0
	}
	tokens := 1
	if x.id.Role == runner.Target {
		tokens = w.tokens(n, x.row)
	}
	return pace.Rest(x.lately.Takes(tokens), w.now-x.began)
}

func (w *world) tokens(n *node, row int) int {
	return w.s.Trace.row(w.s.rowAt(w.drafters, n.index, row)).Tokens
}

// paired reports whether each drafter has a device of one turn that it shares with
// one target at most.
func (n *node) paired(targets int) bool {
	on := make([][2]int, len(n.devices))
	for i := range n.workers {
		role := 0
		if i >= targets {
			role = 1
		}
		on[n.workers[i].device][role]++
	}
	for d, workers := range on {
		if workers[1] > 0 && (workers[1] > 1 || workers[0] > 1 || n.devices[d].turns > 1) {
			return false
		}
	}
	return true
}
