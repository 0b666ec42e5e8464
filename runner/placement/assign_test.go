package placement

import (
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestAssign(t *testing.T) {
	now := Candidate{Turn: true}
	with := func(c Candidate, change func(*Candidate)) Candidate { change(&c); return c }
	for name, c := range map[string]struct {
		free []Candidate
		want int
	}{
		"one":                              {[]Candidate{now}, 0},
		"all alike: the lowest rank":       {[]Candidate{now, now}, 0},
		"one that can begin":               {[]Candidate{{}, now}, 1},
		"begins before alone":              {[]Candidate{{}, with(now, func(c *Candidate) { c.Shared, c.Left = true, 3 })}, 1},
		"alone before shared":              {[]Candidate{with(now, func(c *Candidate) { c.Shared = true }), with(now, func(c *Candidate) { c.Full = 2 })}, 1},
		"the device that is ahead":         {[]Candidate{with(now, func(c *Candidate) { c.Shared, c.Left, c.Near = true, 2, true }), with(now, func(c *Candidate) { c.Shared, c.Left = true, 1 })}, 1},
		"where the row is trained":         {[]Candidate{with(now, func(c *Candidate) { c.Shared, c.Left = true, 2 }), with(now, func(c *Candidate) { c.Shared, c.Left, c.Near, c.Full = true, 2, true, 2 })}, 1},
		"fewer rows ready":                 {[]Candidate{with(now, func(c *Candidate) { c.Full = 1 }), now}, 1},
		"the longest passed over":          {[]Candidate{now, with(now, func(c *Candidate) { c.PassedOver = 1 })}, 1},
		"patience ends":                    {[]Candidate{now, with(now, func(c *Candidate) { c.PassedOver = 9; c.Shared = true })}, 1},
		"and not before":                   {[]Candidate{now, with(now, func(c *Candidate) { c.PassedOver = 8; c.Shared = true })}, 0},
		"of two, who waits longer is next": {[]Candidate{with(now, func(c *Candidate) { c.PassedOver = 10 }), with(now, func(c *Candidate) { c.PassedOver = 11 })}, 1},
		"no turn, however long it waits":   {[]Candidate{with(Candidate{}, func(c *Candidate) { c.PassedOver = 99 }), now}, 1},
		"no turn anywhere: the longest":    {[]Candidate{{}, {PassedOver: 9}}, 1},
	} {
		for i := range c.free {
			c.free[i].Target = runner.Worker{Role: runner.Target, Rank: runner.Rank(i)}
		}
		if got := Assign(c.free); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

// TestNoneStarves: whatever tells against a target, it makes a row in the end,
// as long as it could.
func TestNoneStarves(t *testing.T) {
	free := []Candidate{{Turn: true}, {Turn: true, Full: 2}, {Turn: true, Shared: true, Left: 9, Full: 2}}
	served, waits := make([]int, len(free)), make([]int, len(free))
	for range 1000 {
		at := Assign(free)
		for i := range free {
			free[i].PassedOver++
			waits[i] = max(waits[i], free[i].PassedOver)
		}
		free[at].PassedOver = 0
		served[at]++
	}
	for i := range free {
		if most := (patience+1)*len(free) + len(free); served[i] == 0 || waits[i] > most {
			t.Errorf("target %d made %d rows and waited for %d, want at most %d", i, served[i], waits[i], most)
		}
	}
}

// BenchmarkAssign is a choice among the targets of 64 nodes of 8 GPUs.
func BenchmarkAssign(b *testing.B) {
	free := make([]Candidate, 512)
	for i := range free {
		free[i] = Candidate{Target: runner.Worker{Role: runner.Target, Rank: runner.Rank(i)}, Turn: i%3 == 0, Shared: i%2 == 0, Left: i % 5, Full: i % 3}
	}
	for b.Loop() {
		Assign(free)
	}
}
