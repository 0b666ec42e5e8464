package plan

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// Fitted is a plan with the sizes that the machine has memory for.
type Fitted struct {
	Changes []Change `json:"changes"` // of the configuration; none where it has the largest sizes already
	Plan
}

// Change is one key that gets another value, as --set takes it.
type Change struct {
	Path string `json:"path"`
	From string `json:"from"`
	To   string `json:"to"`
}

// The largest sizes that are looked at, where a configuration asks for less:
// those of the reference workload. Longer rows and more anchors are taken only
// where a configuration names them.
const (
	topBucket  = 3072
	topAnchors = 512
	bucketStep = 128 // tokens: a tile of the block mask
	anchorStep = 8   // anchors: with blocks of 16, a tile
	// thinnest is the fewest anchors for a row, in tokens an anchor: where not
	// even these fit, a shorter row is better. The reference has 6.
	thinnest = 24
)

// Fit chooses the longest bucket, and for it the most anchors, that fit the
// machine; nothing else is changed. It is pure.
func Fit(c *config.Config, target config.Model, m Machine) (Fitted, error) {
	if c.Workers.Device == "cuda" && len(m.GPUs) == 0 {
		_, err := Make(c, target, m) // says so
		return Fitted{}, err
	}
	var last error
	for _, bucket := range lengths(c, target) {
		tried := withBucket(c, bucket)
		most := min(max(topAnchors, c.Training.Anchors), tried.Training.Buckets[0]-1)
		least := max(1, min(bucket/thinnest, most))
		for _, anchors := range counts(c.Training.Anchors, least, most) {
			tried.Training.Anchors = anchors
			p, err := Make(tried, target, m)
			switch {
			case err == nil && p.Fits:
				return Fitted{changes(c, tried), p}, nil
			case err == nil:
				last = runner.Errorf(runner.Exhausted, "want %d MiB of the host, have %d MiB", p.MemoryBytes>>20, p.Available>>20)
			case runner.KindOf(err) != runner.Exhausted:
				return Fitted{}, err // smaller sizes change nothing about it
			default:
				last = err
			}
		}
	}
	return Fitted{}, runner.Errorf(runner.Exhausted, "fit plan %s: not even rows of %d tokens fit: %w", c.Run.Name, shortest(c), last).
		WithHint("use fewer layers, fewer workers or slots, or larger GPUs")
}

// lengths gives the longest bucket's candidates, falling: whole tiles, and what
// the configuration has now.
func lengths(c *config.Config, target config.Model) []int {
	now, least := c.Training.Buckets[len(c.Training.Buckets)-1], shortest(c)
	top := max(now, topBucket)
	if target.MaxPositions > 0 {
		top = min(top, target.MaxPositions)
	}
	all := []int{min(now, top), least}
	for n := top / bucketStep * bucketStep; n >= least; n -= bucketStep {
		all = append(all, n)
	}
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(n int) bool { return n > top || n < least })
	slices.Reverse(all)
	return all
}

// shortest is the least that a longest bucket may be: it must hold a block, one
// anchor, and whole samples.
func shortest(c *config.Config) int {
	least := max(c.Drafter.BlockSize, c.Data.MaxTokens, 8)
	if r := c.Data.Regenerate; r.Samples > 0 {
		least = max(least, r.PromptTokens+r.NewTokens)
	}
	return least
}

// counts gives numbers of anchors from most to least, and the present one.
func counts(now, least, most int) []int {
	all := []int{most, least}
	if now >= least && now <= most {
		all = append(all, now)
	}
	for n := most / anchorStep * anchorStep; n >= least; n -= anchorStep {
		all = append(all, n)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	slices.Reverse(all)
	return all
}

// withBucket gives a copy whose longest bucket is that; shorter ones stay.
func withBucket(c *config.Config, longest int) *config.Config {
	out := *c
	out.Training.Buckets = []int{}
	for _, b := range c.Training.Buckets[:len(c.Training.Buckets)-1] {
		if b < longest {
			out.Training.Buckets = append(out.Training.Buckets, b)
		}
	}
	out.Training.Buckets = append(out.Training.Buckets, longest)
	return &out
}

func changes(from, to *config.Config) []Change {
	out := []Change{}
	for _, k := range []struct{ path, was, is string }{
		{"training.buckets", list(from.Training.Buckets), list(to.Training.Buckets)},
		{"training.anchors", fmt.Sprint(from.Training.Anchors), fmt.Sprint(to.Training.Anchors)},
	} {
		if k.was != k.is {
			out = append(out, Change{k.path, k.was, k.is})
		}
	}
	return out
}

// list writes numbers as --set takes them.
func list(numbers []int) string {
	text := "["
	for i, n := range numbers {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprint(n)
	}
	return text + "]"
}
