package pace

import (
	"testing"
	"time"
)

// TestUntil: the moment and who is held back, worked out on paper.
func TestUntil(t *testing.T) {
	for name, c := range map[string]struct {
		ranks []Rank
		until time.Duration
		held  []bool
	}{
		// Nobody waits for anybody: a row would only be waited for.
		"all ready": {[]Rank{{Row: 10, Slots: 3}, {Row: 10, Slots: 3}}, 0, []bool{true, true}},
		// A row ends in time, a second one would not.
		"one is late": {[]Rank{{Row: 10, Slots: 3}, {Free: 15, Ready: 15, Row: 10, Slots: 3}}, 15, []bool{false, true}},
		// By 12 two of three make a row: they wait 2 each less than 10 each, the third 12 more.
		"two gain more than one loses": {[]Rank{{Free: 2, Ready: 2, Row: 10, Slots: 1}, {Free: 2, Ready: 2, Row: 10, Slots: 1}, {Free: 9, Ready: 9, Row: 10, Slots: 1}}, 12, []bool{false, false, true}},
		// Without slots they make none.
		"no slots": {[]Rank{{Free: 2, Ready: 2, Row: 10}, {Free: 2, Ready: 2, Row: 10}, {Free: 9, Ready: 9, Row: 10, Slots: 1}}, 9, []bool{true, true, true}},
		// Its micro-steps come after the row: 0 to 10 to 30.
		"micro-steps are left": {[]Rank{{Ready: 20, Left: 20, Row: 10, Slots: 1}, {Free: 30, Ready: 30, Row: 10, Slots: 1}}, 30, []bool{false, true}},
		// It waits until 25 for a row that another makes, and can make one meanwhile.
		"a row is awaited": {[]Rank{{Ready: 25, Row: 10, Slots: 1}, {Free: 25, Ready: 25, Row: 10, Slots: 1}}, 25, []bool{false, true}},
	} {
		until := Until(c.ranks)
		if until != c.until {
			t.Errorf("%s: want until %d, got %d", name, c.until, until)
		}
		for i, r := range c.ranks {
			if r.Holds(until) != c.held[i] {
				t.Errorf("%s: rank %d: want held %v", name, i, c.held[i])
			}
		}
	}
}

func TestLately(t *testing.T) {
	var l Lately
	if l.Takes(8) != 0 {
		t.Error("want nothing known at first")
	}
	for _, took := range []time.Duration{90, 100, 0, 400, 110} { // 0 is no measurement
		l.Add(100, took)
	}
	if got := l.Takes(100); got != 110 {
		t.Errorf("want 110, the upper of the middle two of four, got %d", got)
	}
	if got := l.Takes(50); got != 55 {
		t.Errorf("half the tokens: want 55, got %d", got)
	}
	for range 3 {
		l.Add(50, 10) // the last five: 400, 110 and three of 20
	}
	if got := l.Takes(100); got != 20 {
		t.Errorf("want 20, got %d", got)
	}
}

func TestRest(t *testing.T) {
	for _, c := range []struct{ takes, since, want time.Duration }{
		{100, 0, 100}, {100, 60, 40}, {100, 110, 0}, {100, 120, 0}, {100, 121, 121}, {0, 0, 0}, {0, 7, 7},
	} {
		if got := Rest(c.takes, c.since); got != c.want {
			t.Errorf("takes %d, since %d: want %d, got %d", c.takes, c.since, c.want, got)
		}
	}
}
