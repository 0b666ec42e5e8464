package drive

import (
	"testing"
	"time"
)

// TestPulse: a look that comes late is a suspension, told once, and workers are
// borne for a while after it.
func TestPulse(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(100, 0).Add(time.Duration(s * float64(time.Second))) }
	p := newPulse(at(0))
	for _, s := range []float64{1, 2, 6.9, 6.5, 8} { // busy, and two that look at once
		p.look(at(s))
	}
	if gone := p.take(); gone != 0 || p.fresh(at(8), time.Hour) {
		t.Fatalf("%v are gone of a time in which it ran", gone)
	}
	p.look(at(30))
	p.look(at(31))
	if !p.fresh(at(40), 10*time.Second) || p.fresh(at(40.1), 10*time.Second) {
		t.Error("workers are not borne for 10 s after it, or for longer")
	}
	if gone, again := p.take(), p.take(); gone != 22*time.Second || again != 0 {
		t.Errorf("gone for %v, then %v, want 22s once", gone, again)
	}
}
