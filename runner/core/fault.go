package core

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// What a life that never got an order was doing.
const (
	launching = "launch"
	warming   = "warm-up"
)

// fault is what a life was doing when it was lost.
type fault struct {
	doing    string      // "train step 5 micro 0 row 12"; empty: nothing
	step     runner.Step // that doing names; 0: none
	began    uint64      // so many deaths had been reaped when it began
	passing  bool        // it may go away: the worker said so (unavailable, exhausted, ...), or it comes of an abort
	incident uint64      // deaths of one number belong together
	follows  string      // the life whose death came first in the same communicator, or empty
}

// fallen is the first drafter that was lost in a communicator.
type fallen struct {
	communicator runner.Communicator
	life         runner.Life
	incident     uint64
}

// fell notes what a life that is being lost was doing, and whose death its own
// may come from: drafters of one communicator wait for each other in its
// collectives, so the first one lost takes others along.
func (c *Core) fell(w *worker) {
	if w.fault.doing == "" {
		w.fault.doing, w.fault.step, w.fault.began = w.doing()
	}
	if !c.member(w) {
		c.figures.incidents++
		w.fault.incident = c.figures.incidents
		return
	}
	if c.fallen.communicator != c.communicator {
		c.figures.incidents++
		c.fallen = fallen{c.communicator, w.current(), c.figures.incidents}
	} else {
		w.fault.follows = c.fallen.life.String()
	}
	w.fault.incident = c.fallen.incident
}

// member reports whether a drafter is one of the present communicator's.
func (c *Core) member(w *worker) bool {
	return w.id.Role == runner.Drafter && c.communicator > 0 && w.life.State == life.Ready && !c.step.Ranks[w.id.Rank].Gone
}

// doing names what a worker is at: the oldest order of its main thread, else
// the oldest of all, else the phase of its start.
func (w *worker) doing() (doing string, n runner.Step, began uint64) {
	switch w.life.State {
	case life.Launching:
		return launching, 0, w.began
	case life.Warming:
		return warming, 0, w.began
	}
	if len(w.orders) == 0 {
		return "", 0, 0
	}
	o := w.first()
	doing, n = describe(o.order)
	return doing, n, o.began
}

// describe names an order by what it is about and not by when it was sent: an
// order that is sent again after a death has the same name.
func describe(o runner.Order) (string, runner.Step) {
	name := runner.OrderType(o)
	switch o := o.(type) {
	case runner.Produce:
		return fmt.Sprintf("%s row %d", name, o.Row), 0
	case runner.Pull:
		return fmt.Sprintf("%s row %d", name, o.Row), 0
	case runner.Train:
		return fmt.Sprintf("%s step %d micro %d row %d", name, o.Step, o.Micro, o.Row), o.Step
	case runner.Join:
		return fmt.Sprintf("%s step %d", name, o.Step), o.Step
	case runner.Commit:
		return fmt.Sprintf("%s step %d", name, o.Step), o.Step
	case runner.Abort:
		return fmt.Sprintf("%s step %d", name, o.Step), o.Step
	case runner.Image:
		return fmt.Sprintf("%s step %d", name, o.Step), o.Step
	case runner.Load:
		return fmt.Sprintf("%s step %d", name, o.Step), o.Step
	case runner.Evaluate:
		return fmt.Sprintf("%s %s of step %d from %d", name, o.What, o.Step, o.First), 0
	}
	return name, 0
}

// faultOf notes the order that a worker answered with a failure it ends for.
func faultOf(o order, kind runner.Kind) (f fault) {
	f.doing, f.step = describe(o.order)
	f.began = o.began
	f.passing = kind == runner.Unavailable || kind == runner.Exhausted || kind == runner.Stale || kind == runner.Canceled
	return f
}
