package core

import (
	"fmt"
	"math"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

const (
	spikeWindow  = 32 // steps that a step is compared with, and for which a spike is shown
	spikeHistory = 16 // fewer steps are nothing to compare with
)

// trail is a figure of the last steps of this supervisor's life. Its zero value
// is an empty one.
type trail struct {
	values [spikeWindow]float64
	n      int // of values ever put in
}

// put notes a step's figure and gives how many times the median of the steps
// before it is; ok is false where there are too few of them, or none above 0.
// What a spike leaves in the trail moves the median little: half of the window
// must lie as high before it is the rule.
func (t *trail) put(x float64) (times float64, ok bool) {
	before := slices.Clone(t.values[:min(t.n, spikeWindow)])
	t.values[t.n%spikeWindow] = x
	t.n++
	slices.Sort(before)
	if len(before) < spikeHistory || before[len(before)/2] <= 0 {
		return 0, false
	}
	return x / before[len(before)/2], true
}

// Spikes bounds what of a step is normal: times the median of the last steps.
// 0: never looked at.
type Spikes struct {
	Loss float64 // of the loss
	Norm float64 // of the gradient's norm before clipping
}

// spikes is what is known of them.
type spikes struct {
	loss, norm trail
	newest     runner.Step
	why        string // of the newest; empty: there was none
}

// look judges a decided step and says what of it is out of all proportion.
// Nothing is decided by it: a spike is trained like any step.
func (s *spikes) look(at runner.Step, loss float64, trained bool, norm float64, c Spikes) (said []string) {
	judge := func(t *trail, name string, x, bound float64) {
		if times, ok := t.put(x); ok && bound > 0 && times > bound {
			said = append(said, fmt.Sprintf("%s %.4g is %.1f times the median of the steps before", name, x, times))
		}
	}
	if trained { // else every row was skipped: there is no loss, and no gradient
		judge(&s.loss, "loss", loss, c.Loss)
		judge(&s.norm, "gradient norm", norm, c.Norm)
	}
	if len(said) > 0 {
		s.newest, s.why = at, fmt.Sprintf("spike at step %d: %s", at, said[0])
	}
	return said
}

// shown gives why the run is not as it should be at step now, or nothing.
func (s *spikes) shown(now runner.Step) string {
	if s.why == "" || now > s.newest+spikeWindow {
		return ""
	}
	return s.why
}

// spiked tells people of a decided step that is out of all proportion.
func (c *Core) spiked(rec runner.CommitRecord) {
	loss, trained := lossOf(rec.Rows)
	norm := float64(math.Float32frombits(rec.Norm))
	for _, what := range c.figures.spikes.look(rec.Step, loss, trained, norm, c.cfg.Spikes) {
		row := highest(rec.Rows)
		c.emit(runner.Event{Level: runner.Warn, Name: "spike", Step: rec.Step, Row: row.Row, Lineage: rec.Lineage,
			Message: fmt.Sprintf("%s; row %d has the highest loss, %.4g", what, row.Row, row.Numerator/row.Denominator),
			Hint:    "look at that row's samples, the learning rate and training.clip_norm"})
	}
}

// highest gives the row with the highest loss per weight.
func highest(rs []runner.RowLoss) (worst runner.RowLoss) {
	for _, l := range rs {
		if l.Denominator > 0 && (worst.Row == 0 || l.Numerator*worst.Denominator > worst.Numerator*l.Denominator) {
			worst = l
		}
	}
	return worst
}
