// Package gate decides which workers may warm up: a FIFO queue in front of a
// few places. A place is freed by a certificate, or once its holder has been
// reaped; never because its holder is merely believed dead (I2). It is pure.
package gate

import (
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Waiting is a life in the queue.
type Waiting struct {
	Life  runner.Life
	Since time.Time
}

// Gate is the state of the gate.
type Gate struct {
	Width    int
	Holders  []Waiting // Since: when it was let in
	Queue    []Waiting
	Max      int           // most holders at any time
	Sequence []runner.Life // every holder so far, in order
}

// Event is what happens at the gate.
type Event uint8

// The events.
const (
	Ask   Event = iota // a life wants in
	Prove              // a life has its certificate
	Lose               // a life is believed dead: it queues no more, but keeps a place
	Reap               // a life was reaped
)

// Next gives the gate after an event of a life, and the lives that were let in
// by it, first come, first served.
func Next(g Gate, e Event, l runner.Life, now time.Time) (Gate, []runner.Life) {
	of := func(w Waiting) bool { return w.Life == l }
	switch e {
	case Ask:
		if !slices.ContainsFunc(g.Queue, of) && !slices.ContainsFunc(g.Holders, of) {
			g.Queue = append(slices.Clip(g.Queue), Waiting{l, now})
		}
	case Prove:
		g.Holders = without(g.Holders, of)
	case Lose:
		g.Queue = without(g.Queue, of)
	case Reap:
		g.Queue, g.Holders = without(g.Queue, of), without(g.Holders, of)
	}
	var in []runner.Life
	for len(g.Holders) < g.Width && len(g.Queue) > 0 {
		next := g.Queue[0].Life
		in = append(in, next)
		g.Holders = append(slices.Clip(g.Holders), Waiting{next, now})
		g.Queue = g.Queue[1:]
		g.Sequence = append(slices.Clip(g.Sequence), next)
	}
	g.Max = max(g.Max, len(g.Holders))
	return g, in
}

// Holds reports whether l holds a place.
func (g Gate) Holds(l runner.Life) bool {
	return slices.ContainsFunc(g.Holders, func(w Waiting) bool { return w.Life == l })
}

// without copies, so that older values of the gate stay as they were.
func without(ws []Waiting, drop func(Waiting) bool) []Waiting {
	return slices.DeleteFunc(slices.Clone(ws), drop)
}
