package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// curriculum orders samples by length: from short to long, then so that rows are
// full. It keeps its settings alone: what an
// answer needs, the question brings.
type curriculum struct {
	scheduler.Base
	settings settings
}

// settings are the plugin's configuration.
type settings struct {
	Epochs int `msgpack:"epochs"`
	Row    int `msgpack:"row"`
}

// Info says who this is.
func (*curriculum) Info() scheduler.Info {
	return scheduler.Info{Name: "curriculum", Version: "1.0.0"}
}

// Schema gives the keys of the configuration.
func (*curriculum) Schema() []scheduler.Field {
	return []scheduler.Field{
		{Key: "epochs", Type: scheduler.Int, Default: 1, Min: scheduler.Bound(0), Doc: "how many epochs go from short to long; later ones fill rows"},
		{Key: "row", Type: scheduler.Int, Default: 0, Min: scheduler.Bound(0), Max: scheduler.Bound(1 << 20), Doc: "tokens of a row to fill, the run's longest bucket; 0: the longest sample"},
	}
}

// Configure takes the configuration.
func (c *curriculum) Configure(_ context.Context, in scheduler.Config) error {
	return in.Decode(&c.settings)
}

// Arrange gives the shortest of the pool in an epoch of the curriculum; in later
// ones samples that fill rows, the first of each row in the built-in's order.
func (c *curriculum) Arrange(_ context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	if int(q.Epoch) > c.settings.Epochs {
		return c.filled(q), nil
	}
	q.Pool = slices.Clone(q.Pool)
	slices.SortStableFunc(q.Pool, func(a, b scheduler.Candidate) int { return cmp.Compare(a.Tokens, b.Tokens) })
	return scheduler.First(q), nil
}

// filled takes row after row: the next sample of the pool, and then as often as
// one fits the longest that does.
func (c *curriculum) filled(q scheduler.ArrangeRequest) []runner.Sample {
	row := c.settings.Row
	for _, x := range q.Pool {
		row = max(row, int(x.Tokens))
	}
	byLength := make([][]int, row+1) // places in the pool, the first last
	for i, x := range slices.Backward(q.Pool) {
		byLength[x.Tokens] = append(byLength[x.Tokens], i)
	}
	taken := make([]bool, len(q.Pool))
	out := make([]runner.Sample, 0, q.Count)
	take := func(i int) {
		taken[i] = true
		out = append(out, q.Pool[i].Sample)
	}
	for i := 0; len(out) < q.Count; i++ {
		if taken[i] {
			continue
		}
		room := row - int(q.Pool[i].Tokens)
		take(i)
		for length := room; length > 0 && len(out) < q.Count; {
			n := len(byLength[length])
			if n == 0 {
				length--
				continue
			}
			last := byLength[length][n-1]
			byLength[length] = byLength[length][:n-1]
			if !taken[last] {
				take(last)
				room -= length
				length = min(length, room)
			}
		}
	}
	return out
}
