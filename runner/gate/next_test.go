package gate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func life(rank, generation int) runner.Life {
	return runner.Life{Worker: runner.Worker{Role: runner.Drafter, Rank: runner.Rank(rank)}, Generation: runner.Generation(generation)}
}

func lives(ws []Waiting) (ls []runner.Life) {
	for _, w := range ws {
		ls = append(ls, w.Life)
	}
	return ls
}

func TestI2_Next(t *testing.T) {
	a, b, c := life(0, 1), life(1, 1), life(2, 1)
	type event struct {
		e Event
		l runner.Life
	}
	for _, tc := range []struct {
		name           string
		width          int
		events         []event
		holders, queue []runner.Life
		in             []runner.Life // by the last event
	}{
		{"the first comes in at once", 1, []event{{Ask, a}}, []runner.Life{a}, nil, []runner.Life{a}},
		{"the second waits", 1, []event{{Ask, a}, {Ask, b}}, []runner.Life{a}, []runner.Life{b}, nil},
		{"a certificate lets in the longest waiting", 1, []event{{Ask, a}, {Ask, b}, {Ask, c}, {Prove, a}}, []runner.Life{b}, []runner.Life{c}, []runner.Life{b}},
		{"a dead holder keeps its place", 1, []event{{Ask, a}, {Ask, b}, {Lose, a}}, []runner.Life{a}, []runner.Life{b}, nil},
		{"until it is reaped", 1, []event{{Ask, a}, {Ask, b}, {Lose, a}, {Reap, a}}, []runner.Life{b}, nil, []runner.Life{b}},
		{"one that dies in the queue is never let in", 1, []event{{Ask, a}, {Ask, b}, {Ask, c}, {Lose, b}, {Prove, a}}, []runner.Life{c}, nil, []runner.Life{c}},
		{"a width of two lets in two", 2, []event{{Ask, a}, {Ask, b}, {Ask, c}}, []runner.Life{a, b}, []runner.Life{c}, nil},
		{"asking twice queues once", 1, []event{{Ask, a}, {Ask, b}, {Ask, b}, {Ask, a}}, []runner.Life{a}, []runner.Life{b}, nil},
		{"an older generation's reap frees nothing of a newer one", 1, []event{{Ask, life(0, 2)}, {Reap, a}}, []runner.Life{life(0, 2)}, nil, nil},
	} {
		g, in := Gate{Width: tc.width}, []runner.Life(nil)
		for _, e := range tc.events {
			g, in = Next(g, e.e, e.l, t0)
		}
		if !slices.Equal(lives(g.Holders), tc.holders) || !slices.Equal(lives(g.Queue), tc.queue) || !slices.Equal(in, tc.in) {
			t.Errorf("%s: holders %v queue %v let in %v, want %v %v %v", tc.name, lives(g.Holders), lives(g.Queue), in, tc.holders, tc.queue, tc.in)
		}
	}
}

// Random histories: never more holders than the width; a place is given only
// after a certificate or a reap; first come, first served; nobody is forgotten.
func TestI2_RandomHistories(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		g, width := Gate{Width: 1 + r.IntN(3)}, 0
		width = g.Width
		asked, lost := []runner.Life{}, map[runner.Life]bool{}
		for i := range 200 {
			before := g
			e, l := Event(r.IntN(4)), life(r.IntN(6), 1+i/20)
			switch {
			case e == Ask && (slices.Contains(asked, l) || lost[l]), e != Ask && !slices.Contains(asked, l):
				continue
			case e == Prove && !g.Holds(l):
				continue
			case e == Ask:
				asked = append(asked, l)
			case e == Lose:
				lost[l] = true
			}
			var in []runner.Life
			g, in = Next(g, e, l, t0.Add(time.Duration(i)))
			if len(g.Holders) > width || g.Max > width {
				t.Fatalf("seed %d event %d: %d holders, width %d", seed, i, len(g.Holders), width)
			}
			for _, h := range before.Holders {
				if !g.Holds(h.Life) && (h.Life != l || e == Lose || e == Ask) {
					t.Fatalf("seed %d event %d: %v lost its place by event %d of %v", seed, i, h.Life, e, l)
				}
			}
			queue := slices.DeleteFunc(append(lives(before.Queue), l), func(q runner.Life) bool { return q == l && e != Ask })
			if !slices.Equal(in, queue[:len(in)]) {
				t.Fatalf("seed %d event %d: let in %v, queue was %v", seed, i, in, lives(before.Queue))
			}
			if len(g.Queue) > 0 && len(g.Holders) < width {
				t.Fatalf("seed %d event %d: a free place and a queue", seed, i)
			}
		}
	}
}
