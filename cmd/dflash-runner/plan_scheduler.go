package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// decisions is what a scheduler would do, and who answered where it did not.
type decisions struct {
	Name        string          `json:"name"`
	PlacedBy    string          `json:"placed_by"`
	ArrangedBy  string          `json:"arranged_by"`
	AssignedBy  string          `json:"assigned_by"`
	SamplesFrom string          `json:"samples_from"` // always costs: each of their rows stands for one, prepared data is not read
	Costs       string          `json:"costs"`        // their name
	Samples     int             `json:"samples"`      // of the epoch that was asked about
	Moved       int             `json:"moved"`        // of them, elsewhere than the built-in has them
	Arrangement []runner.Sample `json:"arrangement"`  // the first of the epoch
	Tokens      []int           `json:"tokens"`       // of each
	Builtin     []int           `json:"builtin"`      // tokens of those that the built-in has first
	OneLength   bool            `json:"one_length"`   // of all samples: an order by length changes nothing
	Assignments []runner.Worker `json:"assignments"`  // targets of the first rows that had a choice
	Asked       int             `json:"asked"`        // how often it was to assign
	Refused     []string        `json:"refused"`      // answers that were not used
}

// How much of what a scheduler would do is shown.
const (
	shownSamples = 12
	shownRows    = 16
	shownRefused = 8
)

// consulted is a scheduler that a plan asks: a built-in, or a plugin that runs.
type consulted struct {
	made   decisions
	plugin *host.Plugin // nil: built in
}

// consult starts the scheduler of a name, for f, and ends it.
func (c *cli) consult(ctx context.Context, loaded *config.Config, name string, f func(context.Context, *consulted) error) error {
	s := &consulted{made: decisions{Name: name, SamplesFrom: "costs", PlacedBy: config.Balanced, ArrangedBy: config.Balanced, AssignedBy: config.Balanced, Arrangement: []runner.Sample{}, Tokens: []int{}, Assignments: []runner.Worker{}, Refused: []string{}}}
	if name == config.Balanced || name == config.Fixed {
		s.made.PlacedBy, s.made.ArrangedBy, s.made.AssignedBy = name, name, name
		return f(ctx, s)
	}
	entry, at := loaded.Scheduler.Plugin()
	e := up.Catalog(*entry)
	return c.hosted(ctx, loaded, e, func(ctx context.Context, o host.Options) (err error) {
		if s.plugin, err = host.Start(ctx, e, o); err != nil {
			return up.PluginError(loaded, at, err)
		}
		return errors.Join(f(ctx, s), s.plugin.Close())
	})
}

// refuse notes an answer that was not used, unless the plugin does not do that
// at all.
func (s *consulted) refuse(err error) {
	if !errors.Is(err, host.ErrAbsent) && len(s.made.Refused) < shownRefused {
		s.made.Refused = append(s.made.Refused, err.Error())
	}
}

// place asks where workers run, and moves them there, as a run does: what is
// refused leaves them where they are.
func (s *consulted) place(ctx context.Context, p plan.Plan, from planned, t simulate.Trace) plan.Plan {
	if s.plugin == nil || !s.plugin.Can(scheduler.Place) {
		return p
	}
	moved, err := up.Placing{Config: from.config, Plan: p, Machine: from.machine, Costs: t}.Ask(ctx, s.plugin)
	if err != nil {
		s.refuse(err)
		return p
	}
	s.made.PlacedBy = s.made.Name
	return moved
}

// decide has the scheduler arrange the trace's rows, each as a sample of its
// own, and lets it assign in the simulation.
func (s *consulted) decide(ctx context.Context, setup *simulate.Setup, from planned) error {
	s.lengths(setup.Trace)
	s.arrange(ctx, &setup.Trace, from)
	for i := range min(shownSamples, len(setup.Trace.Rows)) {
		s.made.Tokens = append(s.made.Tokens, setup.Trace.Rows[i].Tokens)
	}
	if s.plugin != nil && s.plugin.Can(scheduler.Assign) {
		setup.Assign, s.made.AssignedBy = s.assigner(ctx, uint32(setup.Trace.Shape.Bucket)), s.made.Name
	}
	if s.plugin == nil {
		setup.Assign = s.assigner(ctx, 0)
	}
	return nil
}

// lengths notes what there is to arrange.
func (s *consulted) lengths(t simulate.Trace) {
	s.made.Costs, s.made.Samples, s.made.OneLength = t.Name, len(t.Rows), true
	for i, r := range t.Rows {
		s.made.OneLength = s.made.OneLength && r.Tokens == t.Rows[0].Tokens
		if i < shownSamples {
			s.made.Builtin = append(s.made.Builtin, r.Tokens)
		}
	}
}

// arrange puts the trace's rows into the order that the scheduler gives, a
// horizon at a time.
func (s *consulted) arrange(ctx context.Context, t *simulate.Trace, from planned) {
	rows := t.Rows
	pool := make([]scheduler.Candidate, len(rows))
	for i, r := range rows {
		pool[i] = scheduler.Candidate{Sample: runner.Sample(i), Tokens: uint32(r.Tokens), Supervised: uint32(r.Tokens), Anchors: uint32(max(1, t.Shape.Anchors))}
	}
	var order []runner.Sample
	for s.plugin != nil && s.plugin.Can(scheduler.Arrange) && len(pool) > 0 {
		q := scheduler.ArrangeRequest{Epoch: 1, Count: min(len(pool), from.config.Training.HorizonSteps*from.config.Training.RowsPerStep), Left: len(pool), Total: len(rows), Pool: pool,
			Sources: []scheduler.Source{{Name: t.Name}}}
		next, err := s.plugin.Arrange(ctx, q)
		if err != nil {
			s.refuse(err)
			next = scheduler.First(q)
		} else {
			s.made.ArrangedBy = s.made.Name
		}
		order = append(order, next...)
		pool = without(pool, next)
	}
	if len(order) == 0 {
		for i := range rows {
			order = append(order, runner.Sample(i))
		}
	}
	t.Rows = make([]simulate.Row, len(rows))
	for i, at := range order {
		t.Rows[i] = rows[at]
		if at != runner.Sample(i) {
			s.made.Moved++
		}
	}
	s.made.Arrangement = order[:min(shownSamples, len(order))]
}

// without gives what is left of a pool.
func without(pool []scheduler.Candidate, taken []runner.Sample) (left []scheduler.Candidate) {
	gone := map[runner.Sample]bool{}
	for _, t := range taken {
		gone[t] = true
	}
	for _, c := range pool {
		if !gone[c.Sample] {
			left = append(left, c)
		}
	}
	return left
}

// assigner assigns by the scheduler, and notes what it said. A built-in takes the
// first free target that has a turn, as in a run; the first free one stands in
// for a bad answer.
func (s *consulted) assigner(ctx context.Context, bucket uint32) simulate.Assigner {
	return func(row runner.Row, tokens int, free []simulate.Candidate) (int, error) {
		at := 0
		if s.plugin == nil {
			at = max(0, slices.IndexFunc(free, func(f simulate.Candidate) bool { return f.Turn }))
		} else {
			at = s.assign(ctx, scheduler.AssignRequest{Row: row, Bucket: bucket, Tokens: uint32(tokens)}, free)
		}
		s.made.Asked++
		if len(s.made.Assignments) < shownRows {
			s.made.Assignments = append(s.made.Assignments, free[at].Target)
		}
		return at, ctx.Err()
	}
}

// assign asks the plugin.
func (s *consulted) assign(ctx context.Context, q scheduler.AssignRequest, free []simulate.Candidate) int {
	for _, f := range free {
		q.Free = append(q.Free, f.Target)
	}
	target, err := s.plugin.Assign(ctx, q)
	if err != nil {
		s.refuse(err)
		return 0
	}
	return slices.Index(q.Free, target) // the host has judged that it is there
}

// printDecisions prints what a scheduler would do.
func (c *cli) printDecisions(d decisions) error {
	names := func(all []runner.Worker) string {
		var out []string
		for _, w := range all {
			out = append(out, w.String())
		}
		return strings.Join(out, " ")
	}
	assigned := "" // it does not do that, or one target made all
	if d.Asked > 0 {
		assigned = fmt.Sprintf(": which target makes a row was asked for %d rows, the first of them: %s", d.Asked, names(d.Assignments))
	}
	if err := c.print("scheduler %s\n"+
		"  %-12s about an epoch of %d samples, which stand for the rows of the costs (%s), one each: no data is read\n"+
		"  %-12s by %s\n"+
		"  %-12s by %s: %d of %d samples elsewhere than the built-in has them\n"+
		"  %-12s first numbers %v, of %v tokens; the built-in's first are of %v\n"+
		"  %-12s by %s%s\n", d.Name,
		"asked", d.Samples, d.Costs, "placed", d.PlacedBy, "arranged", d.ArrangedBy, d.Moved, d.Samples, "", d.Arrangement, d.Tokens, d.Builtin,
		"assigned", d.AssignedBy, assigned); err != nil {
		return err
	}
	if d.OneLength {
		if err := c.print("  %-12s all samples are of one length, so an order by length changes nothing: `--trace synthetic:SEED` draws several\n", "note"); err != nil {
			return err
		}
	}
	for _, r := range d.Refused {
		if err := c.print("  %-12s %s; the built-in answered\n", "refused", r); err != nil {
			return err
		}
	}
	return nil
}

// knownScheduler refuses a name that is neither built in nor in the catalog.
func knownScheduler(c *config.Config, name string) error {
	names := []string{config.Balanced, config.Fixed}
	for _, p := range c.Scheduler.Plugins {
		names = append(names, p.Name)
	}
	for _, n := range names {
		if n == name {
			return nil
		}
	}
	return usage("--scheduler: want %s, got %q", strings.Join(names, ", "), name)
}
