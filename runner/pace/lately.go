package pace

import (
	"slices"
	"time"
)

// Lately is what a worker's last few pieces of work took. The zero value knows of
// none.
type Lately struct {
	took [window]took
	n    int // so many so far
}

// window is how many are looked at. A pause or two among them change nothing.
const window = 5

// took is one: its size in tokens, and its time.
type took struct {
	tokens int
	time   time.Duration
}

// Add notes one. What took no time was not measured.
func (l *Lately) Add(tokens int, d time.Duration) {
	if d <= 0 {
		return
	}
	l.took[l.n%window] = took{max(1, tokens), d}
	l.n++
}

// Takes gives what the next one should take: the median, each in proportion to
// its tokens; 0 where none is known.
func (l *Lately) Takes(tokens int) time.Duration {
	n := min(l.n, window)
	if n == 0 {
		return 0
	}
	var all [window]time.Duration
	for i, t := range l.took[:n] {
		all[i] = time.Duration(float64(t.time) * float64(max(1, tokens)) / float64(t.tokens))
	}
	slices.Sort(all[:n])
	return all[n/2]
}

// Rest gives what is still to come of work that should take so long and began so
// long ago. What is late by a fifth has met with a pause, and nobody knows how
// long that is: as long again as it went on so far.
func Rest(takes, since time.Duration) time.Duration {
	if since > takes+takes/5 {
		return since
	}
	return max(0, takes-since)
}
