package rows

import (
	"maps"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Config is what rows and step plans depend on besides the index and the
// order of samples. It belongs into the run's manifest: with another one the
// same order gives other rows.
type Config struct {
	Buckets     []uint32 // row lengths in tokens, rising
	Anchors     uint32   // anchor places of a row
	RowsPerStep int      // a multiple of Drafters
	Drafters    int
	Draws       uint32 // how often an epoch takes each sample
	Schedule    Schedule
}

// Exclusion is a sample that is never planned, and why.
type Exclusion struct {
	Sample runner.Sample
	Reason string
}

// ReasonNoAnchor is why a sample without a valid anchor is left out.
const ReasonNoAnchor = "no valid anchor"

// Planner turns samples, arranged horizon by horizon, into step plans. The
// same calls always give the same plans. It is not for concurrent use.
type Planner struct {
	index     *Index // never changed
	config    Config
	plannable []runner.Sample
	excluded  []Exclusion

	epoch   uint32                   // of the last Feed, 0 before the first
	drawn   map[runner.Sample]uint32 // draws of the open epoch, fed so far
	left    int                      // draws of the open epoch not fed yet
	lastRow runner.Row
	step    runner.Step
	queue   []runner.RowPlan // packed, not planned yet; may span two epochs
}

// NewPlanner checks the configuration and the index against each other.
func NewPlanner(ix *Index, c Config) (*Planner, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &Planner{index: ix, config: c, drawn: map[runner.Sample]uint32{}}
	longest := c.Buckets[len(c.Buckets)-1]
	for i, s := range ix.Samples {
		switch {
		case s.Tokens > longest:
			e := runner.Errorf(runner.Invalid, "plan rows: sample %d has %d tokens, more than the largest bucket (%d)", i, s.Tokens, longest)
			return nil, e.WithHint("raise the largest of training.buckets, or prepare the data with max_tokens: %d", longest)
		case s.Anchors == 0:
			p.excluded = append(p.excluded, Exclusion{runner.Sample(i), ReasonNoAnchor})
		default:
			p.plannable = append(p.plannable, runner.Sample(i))
		}
	}
	if len(p.plannable) == 0 {
		return nil, runner.Errorf(runner.Invalid, "plan rows: want samples with a valid anchor, got none of %d", len(ix.Samples)).
			WithHint("an anchor needs two supervised tokens in a row: check the loss mask that the data was prepared with")
	}
	return p, nil
}

// check refuses what no row or step can be made of.
func (c Config) check() error {
	switch {
	case len(c.Buckets) == 0 || c.Buckets[0] == 0:
		return runner.Errorf(runner.Invalid, "plan rows: buckets: want at least one length above 0, got %d", c.Buckets)
	case !slices.IsSorted(c.Buckets) || len(slices.Compact(slices.Clone(c.Buckets))) != len(c.Buckets):
		return runner.Errorf(runner.Invalid, "plan rows: buckets: want rising lengths, got %d", c.Buckets)
	case c.Anchors == 0:
		return runner.Errorf(runner.Invalid, "plan rows: anchors: want at least 1, got 0")
	case c.Drafters < 1:
		return runner.Errorf(runner.Invalid, "plan rows: drafters: want at least 1, got %d", c.Drafters)
	case c.RowsPerStep < 1 || c.RowsPerStep%c.Drafters != 0:
		return runner.Errorf(runner.Invalid, "plan rows: rows_per_step: want a multiple of %d drafters, got %d", c.Drafters, c.RowsPerStep)
	case c.Draws == 0:
		return runner.Errorf(runner.Invalid, "plan rows: draws: want at least 1, got 0")
	}
	return nil
}

// Plannable gives the samples that an epoch must hold, Draws times each.
func (p *Planner) Plannable() []runner.Sample { return slices.Clone(p.plannable) }

// Excluded gives the samples that are never planned.
func (p *Planner) Excluded() []Exclusion { return slices.Clone(p.excluded) }

// Wanted says which epoch the next Feed is for, and how many samples of it
// have not been fed yet.
func (p *Planner) Wanted() (epoch uint32, left int) {
	if p.left == 0 {
		return p.epoch + 1, len(p.plannable) * int(p.config.Draws)
	}
	return p.epoch, p.left
}

// Feed takes one horizon of samples, in the order they are to be trained, and
// packs them into rows. A row never crosses a horizon. Epochs count from 1 and
// follow each other once every sample was fed Draws times. On an error nothing
// was taken.
func (p *Planner) Feed(epoch uint32, samples []runner.Sample) error {
	want, left := p.Wanted()
	if epoch != want {
		return runner.Errorf(runner.Invalid, "feed samples: want epoch %d, got %d", want, epoch)
	}
	if len(samples) == 0 || len(samples) > left {
		return runner.Errorf(runner.Invalid, "feed samples: want 1 to %d samples of epoch %d, got %d", left, epoch, len(samples))
	}
	drawn := map[runner.Sample]uint32{}
	if p.left > 0 {
		drawn = maps.Clone(p.drawn)
	}
	draws := make([]draw, len(samples))
	for i, s := range samples {
		if _, ok := slices.BinarySearch(p.plannable, s); !ok {
			return runner.Errorf(runner.Invalid, "feed samples: place %d: sample %d is not among the %d that can be planned", i, s, len(p.plannable))
		}
		if drawn[s] == p.config.Draws {
			return runner.Errorf(runner.Invalid, "feed samples: place %d: sample %d comes more than %d times in epoch %d", i, s, p.config.Draws, epoch)
		}
		draws[i] = draw{s, drawn[s]}
		drawn[s]++
	}
	p.epoch, p.drawn, p.left = epoch, drawn, left-len(samples)
	pk := packer{p.index, p.config.Buckets, p.config.Anchors, int(min(p.config.Anchors, MaxPieces))}
	for _, r := range pk.pack(draws) {
		p.lastRow++
		r.Row, r.Epoch = p.lastRow, epoch
		p.queue = append(p.queue, r)
	}
	return nil
}

// Next gives the next step plan; ok is false when more samples must be fed
// first. Rows are laid out micro-step by micro-step, the lowest first, so that
// every rank's next row is always among the lowest. An epoch's last step is
// filled up with weightless places.
func (p *Planner) Next() (s Step, ok bool) {
	n := 0
	for n < len(p.queue) && n < p.config.RowsPerStep && p.queue[n].Epoch == p.queue[0].Epoch {
		n++
	}
	if n == 0 || n < p.config.RowsPerStep && p.queue[0].Epoch == p.epoch && p.left > 0 {
		return Step{}, false
	}
	p.step++
	s.Rows = slices.Clone(p.queue[:n])
	p.queue = p.queue[n:]
	s.Plan = runner.StepPlan{Step: p.step, Epoch: s.Rows[0].Epoch, LR: p.config.Schedule.At(p.step)}
	s.Plan.Rows = make([][]runner.Row, p.config.Drafters)
	for rank := range s.Plan.Rows {
		s.Plan.Rows[rank] = make([]runner.Row, p.config.RowsPerStep/p.config.Drafters)
	}
	for i, r := range s.Rows {
		s.Plan.Rows[i%p.config.Drafters][i/p.config.Drafters] = r.Row
	}
	return s, true
}

// Ready gives how many full steps Next has rows for; the short last step of an
// epoch may come on top.
func (p *Planner) Ready() int { return len(p.queue) / p.config.RowsPerStep }

// Clone gives a planner that goes its own way from here. What it shares with
// p is never changed.
func (p *Planner) Clone() *Planner {
	c := *p
	c.drawn, c.queue = maps.Clone(p.drawn), slices.Clone(p.queue)
	return &c
}
