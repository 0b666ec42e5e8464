package core

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/hang"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// firstOrders is how many answers of a life are left to their deadline: what is
// done for the first time may take longer than ever after.
const firstOrders = 5

// Standing is what a life is asked for, for whoever judges whether it hangs.
type Standing struct {
	Phase hang.Phase
	What  string
	Since time.Time // asked, or answered something since
	Peers bool      // its answer may wait for another worker's
	First bool      // it has not answered much yet
}

// Standing gives how a life stands; ok is false where it is not to be judged:
// it is not the present one, is being ended, or has not come up yet.
func (c *Core) Standing(l runner.Life) (s Standing, ok bool) {
	w := c.find(l)
	if w == nil || w.killed {
		return s, false
	}
	switch w.life.State {
	case life.Waiting:
		return Standing{Phase: hang.Idle, Since: w.life.Since}, true
	case life.Warming:
		return Standing{Phase: hang.WarmUp, What: warming, Since: w.life.Since}, true
	case life.Certified, life.Ready, life.Draining:
	default:
		return s, false
	}
	if len(w.orders) == 0 {
		return Standing{Phase: hang.Idle, Since: w.heard}, true
	}
	s = Standing{Phase: hang.Order, First: w.answers < firstOrders, Since: w.heard}
	s.What, _, _ = w.doing()
	for _, o := range w.orders {
		t, train := o.order.(runner.Train)
		s.Peers = s.Peers || len(c.ranks) > 1 && (train && t.Last || is[runner.Join](o.order))
	}
	if sent := w.orders[0].sent; sent.After(s.Since) {
		s.Since = sent
	}
	return s, true
}
