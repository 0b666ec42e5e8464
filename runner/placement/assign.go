package placement

import "github.com/dflash-runner/dflash-runner/runner"

// Candidate is a target that could make the lowest row that nobody made: it
// computes nothing, and has a free slot.
type Candidate struct {
	Target     runner.Worker
	Turn       bool // its device has a free turn
	Near       bool // the drafter that trains the row is on its device
	Left       int  // rows of the open step that drafters on its device have yet to train; 0 where there is none
	Shared     bool // a drafter is on its device
	Full       int  // slots that hold a row which nobody took
	PassedOver int  // rows that others were given while it could have made them, since its last
}

// patience is how many rows, for each target, may go to others before a target
// that could have made them is next.
const patience = 4

// Assign chooses the target that keeps the pipeline busiest: a place in free,
// which has one entry at least. The first rule that tells two apart decides:
//
//  1. One that can begin now: rows are made in order, so one that waits for its
//     device holds every other target up.
//  2. A target that was passed over four times as often as there are candidates
//     is next, the longest waiting first: none starves that has turns.
//  3. One whose device no drafter shares: it takes no turn from training.
//  4. One whose drafters have the least left to train in the open step: all
//     ranks meet at its end, so the device that is ahead has time.
//  5. One on the device of the drafter that trains the row.
//  6. One with fewer rows lying ready: run-ahead is spread.
//  7. The longest passed over, then the lowest rank.
func Assign(free []Candidate) int {
	best := 0
	for i := range free {
		if before(free[i], free[best], patience*len(free)) {
			best = i
		}
	}
	return best
}

// before reports whether a goes before b; most is how often one may be passed over.
func before(a, b Candidate, most int) bool {
	if a.Turn != b.Turn {
		return a.Turn
	}
	if x, y := max(a.PassedOver-most, 0), max(b.PassedOver-most, 0); x != y {
		return x > y
	}
	switch {
	case a.Shared != b.Shared:
		return b.Shared
	case a.Left != b.Left:
		return a.Left < b.Left
	case a.Near != b.Near:
		return a.Near
	case a.Full != b.Full:
		return a.Full < b.Full
	case a.PassedOver != b.PassedOver:
		return a.PassedOver > b.PassedOver
	}
	return a.Target.Rank < b.Target.Rank
}
