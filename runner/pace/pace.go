// Package pace says when a target lets a row of a later step be, so that devices
// come to rest together. It is pure, and used by the core and by the simulator.
//
// The last micro-step of a step begins on all ranks together, with their devices
// to itself: who is in the middle of a row then keeps all others waiting. Where
// each device has one drafter and one turn, the moment is known in advance from
// what rows and micro-steps took before. So a row of a later step is begun
// only if it ends by the moment at which devices have waited least.
//
// It decides nothing but speed: rows of the open step are never held back, and
// the slots for later ones are counted, so that moment comes.
package pace

import "time"

// Rank is a drafter and the target of its device, as they stand. Times count
// from now.
type Rank struct {
	Free  time.Duration // until its device has done what was ordered
	Ready time.Duration // until it waits for its last micro-step alone, if its target makes no row before
	Left  time.Duration // what its micro-steps but the last take that are not ordered yet
	Row   time.Duration // what the next row takes there
	Slots int           // rows that its target has a slot for
}

// after is when the rank waits for its last micro-step alone, and its device for
// nothing, if its target makes so many rows more before.
func (r Rank) after(more int) time.Duration {
	return max(r.Ready, r.Free+time.Duration(more)*r.Row+r.Left)
}

// Until is the moment by which a row must end: the one, from when all ranks are
// ready up to a row later, by which devices have waited least, the earliest of
// those alike.
func Until(ranks []Rank) time.Duration {
	soonest, longest := time.Duration(0), time.Duration(0)
	for _, r := range ranks {
		soonest, longest = max(soonest, r.after(0)), max(longest, r.Row)
	}
	best, least := soonest, waits(ranks, soonest)
	for _, r := range ranks {
		for k := 1; k <= r.Slots; k++ {
			at := r.after(k)
			if at > soonest+longest {
				break
			}
			if at < soonest {
				continue
			}
			if cost := waits(ranks, at); cost < least || cost == least && at < best {
				best, least = at, cost
			}
		}
	}
	return best
}

// waits is what devices wait until at, when all are ready, all together, but for
// what does not depend on it: the time less the rows that they can make by then.
func waits(ranks []Rank, at time.Duration) (sum time.Duration) {
	for _, r := range ranks {
		sum += at
		if room := at - r.Free - r.Left; r.Row > 0 && room > 0 {
			sum -= r.Row * min(time.Duration(r.Slots), room/r.Row)
		}
	}
	return sum
}

// Holds reports whether a rank's target lets the next row be.
func (r Rank) Holds(until time.Duration) bool { return r.after(1) > until }
