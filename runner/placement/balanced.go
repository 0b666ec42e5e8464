package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Layout is how many workers there are, and whether target n and drafter n
// share GPU n. On a CPU all share it.
type Layout struct {
	Targets  int  `json:"targets"`
	Drafters int  `json:"drafters"`
	Paired   bool `json:"paired"`
}

// String gives "5 targets, 3 drafters" and whether they share.
func (l Layout) String() string {
	text := fmt.Sprintf("%d targets, %d drafters", l.Targets, l.Drafters)
	if l.Paired {
		text += " in pairs"
	}
	return text
}

// Balance is what a choice of counts goes by.
type Balance struct {
	RowsPerStep int
	// Bound gives rows a second that a layout cannot beat; Rate what it is expected
	// to come to. A layout whose drafters do not divide RowsPerStep is asked about
	// with the next multiple.
	Bound func(Layout) float64
	Rate  func(Layout) (float64, error)
}

// Choice is a layout and why.
type Choice struct {
	Layout
	Rate    float64  `json:"rows_per_s"` // expected
	Tried   []Tried  `json:"tried"`      // best first
	Skipped int      `json:"skipped"`    // that fit, and cannot be better by their bound
	Notes   []string `json:"notes"`
}

// Tried is a layout and what is expected of it.
type Tried struct {
	Layout
	Rate float64 `json:"rows_per_s"`
}

// gain is how much more, of the best, a layout must promise to be preferred to
// one with fewer workers, or with nobody sharing.
const gain = 1.005

// Choose gives the layout that is expected to be fastest, among those that w
// allows, the memory of its GPUs holds, and whose drafters divide rows_per_step.
// A count of w above 0 is law, and so is colocate true or false. It looks at
// layouts that use every GPU, from the highest bound down, and stops where no
// bound is near the best rate: what is left cannot be better. Of those that come
// within half a percent of the best, one in which nobody shares is taken, then one
// with fewer workers. Where a number of drafters that does not divide
// rows_per_step would be faster, a note says so.
func (b Balance) Choose(w Wanted) (Choice, error) {
	all, err := w.Layouts()
	if err != nil {
		return Choice{}, err
	}
	fits := func(l Layout) bool { return b.RowsPerStep%l.Drafters == 0 }
	c, err := b.best(all, fits, 0)
	if err != nil {
		return Choice{}, err
	}
	if len(c.Tried) == 0 {
		return Choice{}, runner.Errorf(runner.Invalid, "choose workers: want training.rows_per_step a multiple of a number of drafters that fits, got %d", b.RowsPerStep).
			WithHint("set training.rows_per_step to a multiple of workers.drafters")
	}
	other, err := b.best(all, func(l Layout) bool { return !fits(l) }, c.Rate*1.02)
	if err != nil {
		return Choice{}, err
	}
	if len(other.Tried) > 0 && other.Rate > c.Rate*1.02 {
		c.Notes = append(c.Notes, fmt.Sprintf("%s would make %s rows a second for %s, but rows_per_step %d is no multiple of %d drafters: %d would be",
			other.Layout, rate(other.Rate), rate(c.Rate), b.RowsPerStep, other.Drafters, Multiple(b.RowsPerStep, other.Drafters)))
	}
	return c, nil
}

func rate(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }

// Multiple is the lowest multiple of n that is not below rows.
func Multiple(rows, n int) int { return (rows + n - 1) / n * n }

// best looks at the allowed layouts whose bound is above floor.
func (b Balance) best(all []Layout, allowed func(Layout) bool, floor float64) (Choice, error) {
	type bounded struct {
		Layout
		bound float64
	}
	var by []bounded
	for _, l := range all {
		if allowed(l) {
			by = append(by, bounded{l, b.Bound(l)})
		}
	}
	slices.SortStableFunc(by, func(x, y bounded) int { return cmp.Compare(y.bound, x.bound) })
	var c Choice
	for i, l := range by {
		if l.bound*gain <= max(c.Rate, floor) {
			c.Skipped = len(by) - i
			break
		}
		r, err := b.Rate(l.Layout)
		if err != nil {
			return Choice{}, err
		}
		c.Tried = append(c.Tried, Tried{l.Layout, r})
		c.Rate = max(c.Rate, r)
	}
	if len(c.Tried) == 0 {
		return c, nil
	}
	slices.SortStableFunc(c.Tried, func(x, y Tried) int { return cmp.Compare(y.Rate, x.Rate) })
	chosen := c.Tried[0]
	for _, t := range c.Tried[1:] {
		if t.Rate*gain >= c.Tried[0].Rate && t.simpler(chosen.Layout) {
			chosen = t
		}
	}
	c.Layout, c.Rate = chosen.Layout, chosen.Rate
	return c, nil
}

// simpler reports whether l has fewer that share, then fewer workers, than o.
func (l Layout) simpler(o Layout) bool {
	if l.Paired != o.Paired {
		return !l.Paired
	}
	return l.Targets+l.Drafters < o.Targets+o.Drafters
}

// layouts gives those that w allows, that its devices hold and that leave none
// of them over where counts are open, and why the last one that they do not hold
// is refused.
func (w Wanted) layouts() (all []Layout, refused error) {
	most := w.room()
	counts := func(fixed int) []int {
		if fixed > 0 {
			return []int{fixed}
		}
		out := make([]int, most)
		for i := range out {
			out[i] = i + 1
		}
		return out
	}
	over := func(l Layout) bool {
		switch {
		case w.Targets > 0:
			return false
		case l.Paired:
			return w.Drafters == 0 && max(l.Targets, l.Drafters) < most
		case w.CUDA:
			return l.Targets+l.Drafters < most
		}
		return l.Targets+l.Drafters < max(2, most+1)
	}
	for _, paired := range []bool{false, true} {
		if w.CUDA && (w.Colocate == "true" && !paired || w.Colocate == "false" && paired) || !w.CUDA && paired {
			continue
		}
		for _, t := range counts(w.Targets) {
			for _, d := range counts(w.Drafters) {
				l := Layout{t, d, paired}
				if over(l) {
					continue
				}
				if err := w.holds(l, most); err != nil {
					refused = err
				} else {
					all = append(all, l)
				}
			}
		}
	}
	return all, refused
}

// room is how many workers of one role there may be.
func (w Wanted) room() int {
	if w.CUDA {
		return min(free(w.GPUs), maxWorkers)
	}
	turns := w.Turns
	if turns == 0 {
		turns = w.Cores / max(1, w.Threads)
	}
	return max(1, min(turns-1, maxWorkers)) // more would only wait for turns
}

// maxWorkers is the most of one role.
const maxWorkers = 256

// holds says why a layout cannot be, or nothing.
func (w Wanted) holds(l Layout, most int) error {
	if !w.CUDA {
		if l.Targets+l.Drafters > max(2, most+1) && (w.Targets == 0 || w.Drafters == 0) {
			return runner.Errorf(runner.Invalid, "choose workers: want at most %d on these cores, got %d", max(2, most+1), l.Targets+l.Drafters)
		}
		return nil
	}
	if !l.Paired && l.Targets+l.Drafters > len(w.GPUs) || max(l.Targets, l.Drafters) > len(w.GPUs) {
		return runner.Errorf(runner.Invalid, "choose workers: %s want more than %d GPUs", l, len(w.GPUs))
	}
	_, err := Place(w.as(l))
	return err
}

// as is w with a layout's counts.
func (w Wanted) as(l Layout) Wanted {
	w.Targets, w.Drafters = l.Targets, l.Drafters
	if w.CUDA {
		w.Colocate = strconv.FormatBool(l.Paired)
	}
	return w
}

// Layouts gives the ways to divide the devices that w allows and that leave none
// of them over where counts are open; an error where there is none.
func (w Wanted) Layouts() ([]Layout, error) {
	all, refused := w.layouts()
	if len(all) == 0 && refused == nil {
		refused = runner.Errorf(runner.Exhausted, "choose workers: want a GPU that nobody uses, got none").WithHint("see what doctor says of the GPUs")
	}
	if len(all) > 0 {
		refused = nil
	}
	return all, refused
}
