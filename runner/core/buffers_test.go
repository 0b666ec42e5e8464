package core

import (
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestPlace(t *testing.T) {
	empty := buffer{}
	held := func(row runner.Row) buffer { return buffer{row: row} }
	done := func(row runner.Row) buffer { return buffer{row: row, trained: true} }
	coming := func(row runner.Row) buffer { return buffer{row: row, pulling: true} }
	for _, c := range []struct {
		name     string
		bs       [2]buffer
		training runner.Row
		want     int
		ok       bool
	}{
		{"an empty one", [2]buffer{held(3), empty}, 0, 1, true},
		{"the first of two empty ones", [2]buffer{empty, empty}, 0, 0, true},
		{"an empty one while the other is being filled", [2]buffer{coming(3), empty}, 0, 1, true},
		{"none while both are being filled", [2]buffer{coming(3), coming(4)}, 0, 0, false},
		{"the trained one", [2]buffer{held(3), done(4)}, 0, 1, true},
		{"the lower of two trained ones", [2]buffer{done(4), done(3)}, 0, 1, true},
		{"the higher of two that were not trained", [2]buffer{held(3), held(4)}, 0, 1, true},
		// The row in training may be marked before the worker takes the pull.
		{"the trained one, while the higher is in training", [2]buffer{done(3), held(4)}, 4, 0, true},
		{"not to be told: the trained one is the higher", [2]buffer{done(4), held(3)}, 3, 0, false},
		{"not to be told: neither is marked yet", [2]buffer{held(3), held(4)}, 3, 0, false},
		// A pull that runs now may have ended by then.
		{"the other one, trained, while one is being filled", [2]buffer{done(3), coming(4)}, 0, 0, true},
		{"not to be told: once filled, the higher would give way", [2]buffer{held(3), coming(4)}, 0, 0, false},
	} {
		i, ok := place(c.bs, c.training)
		if ok != c.ok || ok && i != c.want {
			t.Errorf("%s: %+v, training row %d: got %d, %v, want %d, %v", c.name, c.bs, c.training, i, ok, c.want, c.ok)
		}
	}
}
