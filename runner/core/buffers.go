package core

import (
	"github.com/dflash-runner/dflash-runner/runner"
)

// buffer is one of a drafter's two row buffers. Which one a pull fills is
// fixed by proto/lane.md, so that both sides know it without saying it.
type buffer struct {
	row     runner.Row // 0: empty
	pulling bool
	trained bool // since it was pulled; an abort does not take this away
}

// place gives the buffer that a pull sent now will fill. ok is false when that
// cannot be told yet, because it depends on whether the row in training is
// marked as trained by then, or when both buffers are being filled.
func place(bs [2]buffer, training runner.Row) (i int, ok bool) {
	if bs[0].pulling && bs[1].pulling {
		return 0, false
	}
	i = victim(bs)
	then := bs // what may be by then: the row is trained, a pull has ended, or both
	for j := range then {
		then[j].trained = then[j].trained || training != 0 && then[j].row == training
	}
	if then != bs && victim(then) != i {
		return 0, false
	}
	if !bs[0].pulling && !bs[1].pulling {
		return i, true
	}
	for _, may := range [2][2]buffer{bs, then} {
		may[0].pulling, may[1].pulling = false, false
		if victim(may) != i {
			return 0, false
		}
	}
	return i, true
}

// victim is the rule itself: an empty buffer; else a trained row, the lower
// first; else the higher row.
func victim(bs [2]buffer) int {
	a, b := bs[0], bs[1]
	low := a.row < b.row
	switch {
	case a.row == 0:
		return 0
	case b.row == 0:
		return 1
	case a.pulling: // in use
		return 1
	case b.pulling:
		return 0
	case a.trained && b.trained:
		return pick(low, 0, 1)
	case a.trained:
		return 0
	case b.trained:
		return 1
	default:
		return pick(low, 1, 0)
	}
}

func pick(first bool, a, b int) int {
	if first {
		return a
	}
	return b
}

// holds reports whether the drafter has a row whole in a buffer.
func (w *worker) holds(row runner.Row) bool {
	for _, b := range w.buffers {
		if b.row == row && !b.pulling {
			return true
		}
	}
	return false
}

// buffered reports whether a row is in a buffer or on its way there.
func (w *worker) buffered(row runner.Row) bool {
	return w.buffers[0].row == row || w.buffers[1].row == row
}

// training is the row of the train order that runs, or 0.
func (w *worker) training() runner.Row {
	for _, o := range w.orders {
		if t, ok := o.order.(runner.Train); ok {
			return t.Row
		}
	}
	return 0
}
