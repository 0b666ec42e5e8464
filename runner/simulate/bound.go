package simulate

import (
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Bound is what no schedule of a setup can beat.
type Bound struct {
	Seconds   float64 `json:"seconds"`    // of the whole run
	Chain     float64 `json:"chain_s"`    // by the chain of steps
	Targets   float64 `json:"targets_s"`  // by what targets have to make
	IdleShare float64 `json:"idle_share"` // of all devices' turns, at least
}

// Bound gives a lower bound on the length of the run, and by it on idle time.
//
// Whoever assigns rows, in whatever order turns are given out, whatever is held
// back, and if all costs were known beforehand:
//
// Chain. Micro-steps of step n begin when every rank has committed step n-1. A
// rank computes its micro-steps one after another, the last one no earlier than
// any rank is done with the others, and its end is common: the slowest last one
// and the sum of gradients. Then comes the vote, and no commit begins before it;
// the step is over when the slowest commit is. Drafters of one device need their
// turns: with more of them than turns, their micro-steps share it. An open image
// holds the decision up.
//
// No micro-step begins before its row is made and handed off. A node's rows are
// begun in their order, on so many turns as its targets can have. When row j is
// begun, all rows before it were, and a turn is free: so it is begun no sooner
// than row j-1, and no sooner than all but turns-1 of the rows before it are
// done. On equal turns that are there for targets alone, the quickest of the
// node's, the next row taken by the first free turn keeps both with equality;
// other schedules end each row no sooner, by induction over rows, as neither rule
// is eased by a row that ends later. Which way a row is handed off follows from
// who made it: a local way there is only where a target shares the device.
//
// Targets. All rows of a node are made by its targets, each by one turn of its
// device. When the last row is made, its hand-off, the shortest last micro-step,
// sum, vote and commit are still to come. Before that a target's device has its
// turns, for as many as it has targets, less what drafters on it held by then:
// each micro-step and commit one, the common last micro-step all of them from
// its beginning to its end. Work of w on devices with factors f and times a to give needs
// sum(a/f) >= w, whoever makes which row.
//
// The run is no shorter than the longer of the two. A test walks through all
// schedules of small setups: none is shorter, and in most the shortest is as
// long. In large ones whose rows differ no run is known to be: it lets every
// device finish its rows just as the others are ready for the common last
// micro-step. A stronger bound, by which only whole rows are made between two of
// these, was worked out by its dual for eight pairs: where times differ by some
// percent, whole rows fill nearly any gap if they are chosen for it, and it rose
// by 0.01 %. On the trace with pauses and a slow device, a rule that knows all
// costs comes to within 2.7 % (TestHeldBack).
//
// What devices compute is the same in every schedule, but for who makes a row
// where devices differ in speed; there the slowest is taken. So idle time, turns
// times length less work, is no less than by the bound.
func (s Setup) Bound() Bound {
	chain, tail := s.chain()
	targets := time.Duration(0)
	work, lasts := time.Duration(0), s.lasts()
	for node := range s.Nodes {
		c := s.crew(node, lasts)
		targets = max(targets, c.need(s, tail))
		work += c.most()
	}
	whole := max(chain, targets)
	return Bound{Seconds: whole.Seconds(), Chain: chain.Seconds(), Targets: targets.Seconds(), IdleShare: max(0, idleShare(s, whole, work))}
}

// chain gives when the chain of steps is over at least, and what follows the last
// row's making.
func (s Setup) chain() (whole, tail time.Duration) {
	_, tail, handOff := s.steps()
	return s.fed(s.fill() + handOff), tail
}

// steps adds up the steps, and gives what follows the last row's making, and the
// quickest hand-off.
func (s Setup) steps() (whole, tail, handOff time.Duration) {
	costs, order := s.Trace.Costs, ms(s.Trace.Costs.OrderMS)
	handOff = slices.Min(s.ways())
	vote, image := ms(costs.VoteMS), time.Duration(0)
	_, drafters := s.count()
	ranks := drafters * s.Nodes
	for n := range s.Steps {
		before, last, quickest, commit := s.stepOf(n, order)
		train := before + last
		if ranks > 1 {
			train += s.sum()
			quickest += s.sum()
		}
		whole += max(train+vote, image) + commit
		image = 0
		if costs.ImageEvery > 0 && (n+1)%costs.ImageEvery == 0 {
			image = ms(costs.ImageMS)
		}
		tail = handOff + quickest + vote + commit
	}
	return whole, tail, handOff
}

// fill is how long the quickest of the first rows takes at least.
func (s Setup) fill() time.Duration {
	best := time.Duration(1<<63 - 1)
	_, drafters := s.count()
	for node := range s.Nodes {
		for _, w := range s.Workers {
			for j := 0; w.Worker.Role == runner.Target && j < drafters; j++ {
				best = min(best, ms(s.Trace.row(s.rowAt(drafters, node, j)).TargetMS*s.factor(node, w.Device)))
			}
		}
	}
	return best + ms(s.Trace.Costs.OrderMS)
}

// stepOf gives the longest that a rank trains in step n before its last
// micro-step, the longest and the shortest last one, and the longest commit.
func (s Setup) stepOf(n int, order time.Duration) (before, last, quickest, commit time.Duration) {
	_, drafters := s.count()
	micros := s.micros()
	quickest = 1<<63 - 1
	for node := range s.Nodes {
		shared := make([]time.Duration, len(s.Turns)) // by device, of all its drafters
		commits := make([]time.Duration, len(s.Turns))
		for _, w := range s.Workers {
			if w.Worker.Role != runner.Drafter {
				continue
			}
			f, own := s.factor(node, w.Device), time.Duration(0)
			for m := range micros {
				t := ms(s.Trace.row(s.rowAt(drafters, node, (n*micros+m)*drafters+int(w.Worker.Rank))).DrafterMS*f) + order
				if m == micros-1 {
					last, quickest = max(last, t), min(quickest, t)
				} else {
					own += t
				}
			}
			update := ms(s.Trace.Costs.UpdateMS*f) + order
			shared[w.Device] += own
			commits[w.Device] += update
			before, commit = max(before, own), max(commit, update)
		}
		for d, turns := range s.Turns {
			before, commit = max(before, shared[d]/time.Duration(turns)), max(commit, commits[d]/time.Duration(turns))
		}
	}
	return before, last, quickest, commit
}

// RateBound gives rows a second that no schedule can keep up for long: what
// happens once, such as the first row's making and the last one's training, is
// left out of the bound.
func (s Setup) RateBound() float64 {
	s.Trace.Costs.ImageEvery = 0
	steps, _, _ := s.steps()
	longest, lasts := steps.Seconds(), s.lasts()
	for node := range s.Nodes {
		c := s.crew(node, lasts)
		clear(c.ends)
		longest = max(longest, c.need(s, 0).Seconds())
	}
	return float64(s.RowsPerStep*s.Steps) / longest
}
