package journal

import (
	"fmt"
	"math"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// plan checks a new plan against the planner's, and one written anew against
// the one before less the rows that were skipped.
func (v *verifier) plan(r runner.PlanRecord) error {
	got, n := rows.Step{Plan: r.Plan, Rows: r.Rows}, r.Plan.Step
	var want rows.Step
	switch {
	case v.replan != 0:
		if n != v.replan {
			return fmt.Errorf("want the plan of step %d, which changed, got step %d", v.replan, n)
		}
		want = *v.plans.of(n)
		for _, row := range v.skips {
			if w, ok := want.Without(row); ok {
				want = w
			}
		}
	case n == v.plans.last()+1:
		var ok bool
		if want, ok = v.planner.Next(); !ok {
			return fmt.Errorf("want samples arranged first: those so far give %d steps", v.plans.last())
		}
	default:
		return fmt.Errorf("want the plan of step %d, got step %d", v.plans.last()+1, n)
	}
	if !same(got, want) {
		return fmt.Errorf("want rows %v of epoch %d at rate %g with the pieces that the order gives, got rows %v of epoch %d at rate %g", want.Plan.Rows, want.Plan.Epoch, want.Plan.LR, got.Plan.Rows, got.Plan.Epoch, got.Plan.LR)
	}
	if n == v.committed+1 && len(v.skips) > 0 {
		for _, row := range v.plans.of(n).Rows {
			if slices.Contains(v.skips, row.Row) {
				v.skipped = append(v.skipped, row)
			}
		}
	}
	v.plans.put(got)
	if chain := v.plans.chain(n); r.Chain != chain {
		return fmt.Errorf("want chain %x, got %x", chain, r.Chain)
	}
	if v.replan != 0 {
		v.replaced(n)
	}
	return nil
}

// replaced goes on to the next plan that a skip changes: all later ones, since
// their chains do.
func (v *verifier) replaced(n runner.Step) {
	v.replan++
	if n == v.plans.last() {
		v.replan, v.skips = 0, nil
	}
}

func (v *verifier) commit(r runner.CommitRecord) error {
	p := v.plans.of(r.Step)
	switch {
	case !v.restored:
		return fmt.Errorf("want a restore first in a life that resumes")
	case r.Step != v.committed+1:
		return fmt.Errorf("want step %d, got %d", v.committed+1, r.Step)
	case r.Lineage != v.lineage:
		return fmt.Errorf("want lineage %d, got %d", v.lineage, r.Lineage)
	case p == nil:
		return fmt.Errorf("want a plan of step %d first", r.Step)
	case r.Chain != v.plans.chain(r.Step):
		return fmt.Errorf("want chain %x, got %x", v.plans.chain(r.Step), r.Chain)
	}
	var want, got []runner.Row
	for _, rank := range p.Plan.Rows {
		for _, row := range rank {
			if row != 0 {
				want = append(want, row)
			}
		}
	}
	for _, l := range r.Rows {
		got = append(got, l.Row)
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("want rows %d by rank and micro-step, got %d", want, got)
	}
	if before, ok := v.first[r.Step]; ok {
		v.repeated++
		if v.facts.BitIdentical && before.Chain == r.Chain {
			if d := differs(before, r); d != "" {
				return fmt.Errorf("step %d was committed in lineages %d and %d with other bits: %s", r.Step, before.Lineage, r.Lineage, d)
			}
		}
	}
	v.committed = r.Step
	v.commits = append(v.commits, r)
	return nil
}

// differs says in what two commits of one step differ, bit for bit.
func differs(a, b runner.CommitRecord) string {
	if a.Weight != b.Weight || a.Norm != b.Norm {
		return fmt.Sprintf("weight %08x and norm %08x, then %08x and %08x", a.Weight, a.Norm, b.Weight, b.Norm)
	}
	for i := range a.Rows {
		x, y := a.Rows[i], b.Rows[i]
		if math.Float64bits(x.Numerator) != math.Float64bits(y.Numerator) || math.Float64bits(x.Denominator) != math.Float64bits(y.Denominator) {
			return fmt.Sprintf("row %d has loss %x of %x, then %x of %x", x.Row, x.Numerator, x.Denominator, y.Numerator, y.Denominator)
		}
	}
	return ""
}

func (v *verifier) skip(r runner.SkipRecord) error {
	p := v.plans.of(r.Step)
	switch {
	case !v.restored:
		return fmt.Errorf("want a restore first in a life that resumes")
	case r.Step != v.committed+1 || p == nil:
		return fmt.Errorf("want a skip in step %d, which is open, got step %d", v.committed+1, r.Step)
	case r.Lineage != v.lineage:
		return fmt.Errorf("want lineage %d, got %d", v.lineage, r.Lineage)
	case r.Reason == "":
		return fmt.Errorf("want a reason")
	}
	i := slices.IndexFunc(p.Rows, func(p runner.RowPlan) bool { return p.Row == r.Row })
	if i < 0 || slices.Contains(v.skips, r.Row) {
		return fmt.Errorf("row %d is not one that step %d trains", r.Row, r.Step)
	}
	var samples []runner.Sample
	var draws []uint32
	for _, piece := range p.Rows[i].Pieces {
		samples, draws = append(samples, piece.Sample), append(draws, piece.Draw)
	}
	if !slices.Equal(samples, r.Samples) || !slices.Equal(draws, r.Draws) {
		return fmt.Errorf("want samples %d (draws %d) of row %d, got %d (%d)", samples, draws, r.Row, r.Samples, r.Draws)
	}
	v.skips = append(v.skips, r.Row)
	return nil
}
