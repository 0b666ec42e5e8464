package simulate

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// crew is what a node's devices have to compute.
type crew struct {
	made    float64         // seconds of making rows, at factor 1, orders not counted
	orders  time.Duration   // of making rows
	trained []time.Duration // by device: micro-steps and commits
	held    []time.Duration // by device: turns that these keep, those of the common last micro-step included
	ends    []time.Duration // of them, those that may come after the last row is made
	factors []float64       // of devices with targets; 0: none
	lanes   []int           // of them: targets that may compute at once
}

// crew adds up a node. Between the last row's making and the end a device may
// still compute its last micro-step and commit, and other micro-steps while that
// row is handed off. lasts are the lengths of the common last micro-steps, which
// hold every turn of drafters' devices.
func (s Setup) crew(node int, lasts []time.Duration) crew {
	_, drafters := s.count()
	n, each := len(s.Turns), s.micros()
	micros := each * s.Steps
	c := crew{trained: make([]time.Duration, n), held: make([]time.Duration, n), ends: make([]time.Duration, n), factors: make([]float64, n), lanes: make([]int, n)}
	order, rows := ms(s.Trace.Costs.OrderMS), micros*drafters
	for j := range rows {
		c.made += s.Trace.row(s.rowAt(drafters, node, j)).TargetMS / 1000
	}
	c.orders = order * time.Duration(rows)
	for _, w := range s.Workers {
		f := s.factor(node, w.Device)
		if w.Worker.Role == runner.Target {
			c.factors[w.Device] = f
			c.lanes[w.Device] = min(c.lanes[w.Device]+1, s.Turns[w.Device])
			continue
		}
		last := time.Duration(0)
		for m := range micros {
			own := ms(s.Trace.row(s.rowAt(drafters, node, m*drafters+int(w.Worker.Rank))).DrafterMS*f) + order
			c.trained[w.Device] += own
			if m%each < each-1 || lasts == nil {
				c.held[w.Device] += own
			}
			last = own
		}
		update := ms(s.Trace.Costs.UpdateMS*f) + order
		c.trained[w.Device] += update * time.Duration(s.Steps)
		c.held[w.Device] += update * time.Duration(s.Steps)
		if lasts != nil {
			last = 0 // is counted with the device
		}
		c.ends[w.Device] += last + update + ms(max(s.Trace.Costs.HandOffMS, s.Trace.Costs.HandOffLocalMS)) + order
	}
	for d := range c.held {
		for n := 0; n < len(lasts) && c.trained[d] > 0; n++ {
			c.held[d] += lasts[n] * time.Duration(s.Turns[d])
			if n == len(lasts)-1 {
				c.ends[d] += lasts[n] * time.Duration(s.Turns[d])
			}
		}
	}
	return c
}

// lasts gives how long the common last micro-step of each step is; nil where
// there is one rank, which holds its own turn alone.
func (s Setup) lasts() []time.Duration {
	_, drafters := s.count()
	if drafters*s.Nodes == 1 {
		return nil
	}
	out := make([]time.Duration, s.Steps)
	for n := range out {
		_, last, _, _ := s.stepOf(n, ms(s.Trace.Costs.OrderMS))
		out[n] = last + s.sum()
	}
	return out
}

// need is how long the node takes at least, with tail after its last row.
func (c crew) need(s Setup, tail time.Duration) time.Duration {
	work, rate, slowest := c.made, 0.0, 0.0
	for d, f := range c.factors {
		if f == 0 {
			continue
		}
		rate += float64(c.lanes[d]) / f
		if c.lanes[d] == s.Turns[d] { // drafters take from the same turns
			work += max(0, c.held[d]-c.ends[d]).Seconds() / f
		}
		slowest = max(slowest, f)
	}
	work += c.orders.Seconds() / slowest
	return time.Duration(work/rate*1e9) + tail
}

// most is what the node's devices compute at most: every row at the slowest
// target's speed.
func (c crew) most() time.Duration {
	slowest := 0.0
	for _, f := range c.factors {
		slowest = max(slowest, f)
	}
	sum := time.Duration(c.made*slowest*1e9) + c.orders
	for _, t := range c.trained {
		sum += t
	}
	return sum
}
