package simulate

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// fed is when the last step is over at least, where no micro-step begins before
// from and rows come no sooner than a node's targets can make them. See Bound
// for why.
func (s Setup) fed(from time.Duration) (end time.Duration) {
	costs, order, image := s.Trace.Costs, ms(s.Trace.Costs.OrderMS), time.Duration(0)
	feeds := make([]feed, s.Nodes)
	for node := range feeds {
		feeds[node] = s.feed(node)
	}
	end = from
	for n := range s.Steps {
		before, last, _, commit := s.stepOf(n, order)
		together := end + before
		for node := range feeds {
			together = max(together, s.supplied(n, node, &feeds[node], end))
		}
		if len(feeds[0].ways)*s.Nodes > 1 {
			last += s.sum()
		}
		end = max(together+last+ms(costs.VoteMS), image) + commit
		if costs.ImageEvery > 0 && (n+1)%costs.ImageEvery == 0 {
			image = end + ms(costs.ImageMS)
		}
	}
	return end
}

// supplied is when a node's ranks can be ready for the last micro-step of step
// n, which opens at open, by their rows.
func (s Setup) supplied(n, node int, f *feed, open time.Duration) (ready time.Duration) {
	order, micros, drafters := ms(s.Trace.Costs.OrderMS), s.micros(), len(f.ways)
	for r := range f.at {
		f.at[r] = open
	}
	for m := range micros {
		for r := range f.at {
			row := s.Trace.row(s.rowAt(drafters, node, (n*micros+m)*drafters+r))
			f.at[r] = max(f.at[r], f.make(row.TargetMS, order)+f.ways[r])
			if m < micros-1 {
				f.at[r] += ms(row.DrafterMS*f.factors[r]) + order
			}
		}
	}
	return maxOf(f.at)
}

// feed is how a node's drafters get their rows at best: its targets all as quick
// as the quickest, with their devices for them alone.
type feed struct {
	ways    []time.Duration // by rank: the quickest hand-off
	factors []float64       // by rank: of its device
	at      []time.Duration // scratch

	factor float64         // of the quickest target
	began  time.Duration   // the last row was
	free   []time.Duration // by turn of targets: when it is
}

func (s Setup) feed(node int) feed {
	targets, drafters := s.count()
	f := feed{ways: s.ways(), factors: make([]float64, drafters), at: make([]time.Duration, drafters), free: make([]time.Duration, 0, targets)}
	lanes := make([]int, len(s.Turns))
	for _, w := range s.Workers {
		own := s.factor(node, w.Device)
		if w.Worker.Role == runner.Drafter {
			f.factors[w.Worker.Rank] = own
			continue
		}
		if f.factor == 0 || own < f.factor {
			f.factor = own
		}
		if lanes[w.Device]++; lanes[w.Device] <= s.Turns[w.Device] {
			f.free = append(f.free, 0)
		}
	}
	return f
}

// make gives when the next row is made at the earliest.
func (f *feed) make(targetMS float64, order time.Duration) time.Duration {
	first := 0
	for i, t := range f.free {
		if t < f.free[first] {
			first = i
		}
	}
	f.began = max(f.began, f.free[first])
	f.free[first] = f.began + ms(targetMS*f.factor) + order
	return f.free[first]
}

// ways gives by rank how long a hand-off takes at least: it is a local one only
// from a target of the drafter's own device.
func (s Setup) ways() []time.Duration {
	costs := s.Trace.Costs
	targets, drafters := s.count()
	on := make([]int, len(s.Turns))
	for _, w := range s.Workers {
		if w.Worker.Role == runner.Target {
			on[w.Device]++
		}
	}
	out := make([]time.Duration, drafters)
	for _, w := range s.Workers {
		if w.Worker.Role != runner.Drafter {
			continue
		}
		way, apart := ms(costs.HandOffLocalMS), ms(costs.HandOffMS)
		switch on[w.Device] {
		case 0:
			way = apart
		case targets:
		default:
			way = min(way, apart)
		}
		out[w.Worker.Rank] = way + ms(costs.OrderMS)
	}
	return out
}
