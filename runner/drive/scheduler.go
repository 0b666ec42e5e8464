package drive

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// ErrDeclined is a scheduler's answer to a question that it leaves to the
// built-in: it does not do that, or cannot be asked now. It is no refusal; the
// scheduler itself shows how it does.
var ErrDeclined = errors.New("left to the built-in")

// Fixed is the built-in scheduler: each epoch's order is a pure function of the
// seed and the epoch, and the first free target makes the next row.
type Fixed struct {
	Seed    uint64
	Samples []runner.Sample // those that can be planned
	Draws   uint32          // of each sample in an epoch
}

// Name gives "fixed".
func (Fixed) Name() string { return "fixed" }

// Arrange gives the next part of the epoch's order.
func (f Fixed) Arrange(_ context.Context, epoch uint32, count, left int) ([]runner.Sample, error) {
	order := rows.Order(f.Seed, epoch, f.Samples, f.Draws)
	if left < 0 || left > len(order) {
		return nil, runner.Errorf(runner.Internal, "arrange epoch %d: want at most %d samples left, got %d", epoch, len(order), left)
	}
	next := order[len(order)-left:]
	return next[:min(count, len(next))], nil
}

// Assign takes the first.
func (Fixed) Assign(_ context.Context, _ runner.RowPlan, free []runner.Worker) (runner.Worker, error) {
	if len(free) == 0 {
		return runner.Worker{}, runner.Errorf(runner.Internal, "assign row: no target is free")
	}
	return free[0], nil
}

// guard judges a scheduler's answers before the core sees them, and answers
// with the built-in's where they are late or wrong. It keeps one number a
// sample: a run may have many millions.
type guard struct {
	scheduler Scheduler
	builtin   Scheduler
	own       bool // the scheduler is the built-in
	draws     uint32
	total     int                 // draws of an epoch
	plannable []bool              // by sample
	given     map[uint32][]uint32 // by epoch and sample: how often it was arranged
	refused   int
}

func newGuard(c Config, arranged []runner.ArrangeRecord) *guard {
	g := &guard{scheduler: c.Scheduler, builtin: c.Builtin, own: c.Scheduler == nil, draws: c.Draws,
		total: len(c.Plannable) * int(c.Draws), given: map[uint32][]uint32{}}
	if g.own {
		g.scheduler = c.Builtin
	}
	if len(c.Plannable) > 0 {
		g.plannable = make([]bool, slices.Max(c.Plannable)+1)
	}
	for _, s := range c.Plannable {
		g.plannable[s] = true
	}
	for _, a := range arranged {
		g.took(a.Epoch, a.Samples)
	}
	return g
}

func (g *guard) known(s runner.Sample) bool { return int(s) < len(g.plannable) && g.plannable[s] }

// took notes what was arranged. Only the newest two epochs are remembered.
func (g *guard) took(epoch uint32, samples []runner.Sample) {
	seen := g.given[epoch]
	if seen == nil {
		seen = make([]uint32, len(g.plannable))
		g.given[epoch] = seen
		for old := range g.given {
			if old+1 < epoch {
				delete(g.given, old)
			}
		}
	}
	for _, s := range samples {
		if g.known(s) {
			seen[s]++
		}
	}
}

// had says how often a sample was arranged in an epoch.
func (g *guard) had(epoch uint32, s runner.Sample) uint32 {
	if seen := g.given[epoch]; seen != nil {
		return seen[s]
	}
	return 0
}

// judge says what is wrong with an arrangement, or nothing.
func (g *guard) judge(epoch uint32, count, left int, samples []runner.Sample) error {
	if want := min(count, left); len(samples) != want {
		return fmt.Errorf("epoch %d: want %d samples, got %d", epoch, want, len(samples))
	}
	fresh := make(map[runner.Sample]uint32, len(samples))
	for i, s := range samples {
		fresh[s]++
		switch {
		case !g.known(s):
			return fmt.Errorf("epoch %d place %d: sample %d is not in the index or cannot be planned", epoch, i, s)
		case g.had(epoch, s)+fresh[s] > g.draws:
			return fmt.Errorf("epoch %d place %d: sample %d was arranged before", epoch, i, s)
		}
	}
	return nil
}

// complete replaces a bad arrangement: the samples of the epoch that were not
// given yet, in the built-in's order. It is right whatever was arranged before.
func (g *guard) complete(ctx context.Context, epoch uint32, count int) ([]runner.Sample, error) {
	order, err := g.builtin.Arrange(ctx, epoch, g.total, g.total)
	if err != nil {
		return nil, err
	}
	passed := make([]uint32, len(g.plannable))
	var out []runner.Sample
	for _, s := range order {
		if passed[s]++; passed[s] > g.had(epoch, s) && len(out) < count {
			out = append(out, s)
		}
	}
	return out, nil
}
