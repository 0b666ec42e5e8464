package core

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// plan is a step plan and where the journal has it.
type plan struct {
	runner.PlanRecord
	number uint64  // of its record; 0: durable from an earlier life
	spots  []spot  // of its rows, in their order
	index  [][]int // of Rows, by rank and micro; -1 at a weightless place
}

// spot is the place that trains a row.
type spot struct {
	rank, micro int
	slot        runner.Slot // that the row was last written to, to look there first; arena 0: none yet
}

// newPlan finds the spots of a plan's rows, which never move.
func newPlan(r runner.PlanRecord) plan {
	p := plan{PlanRecord: r, spots: make([]spot, len(r.Rows)), index: make([][]int, len(r.Plan.Rows))}
	placed := 0
	for rank, rows := range r.Plan.Rows {
		p.index[rank] = make([]int, len(rows))
		for micro, row := range rows {
			if p.index[rank][micro] = p.find(row); row != 0 {
				p.spots[p.mustFind(row)] = spot{rank: rank, micro: micro}
				placed++
			}
		}
	}
	if placed != len(r.Rows) {
		panic("core: a plan does not place its rows") // rows.Planner and the journal's reader both check this
	}
	return p
}

// find gives the index of a row, -1 where it is none of the plan's. They mostly
// have numbers in sequence.
func (p *plan) find(row runner.Row) int {
	if len(p.Rows) == 0 {
		return -1
	}
	if i := row - p.Rows[0].Row; row >= p.Rows[0].Row && i < runner.Row(len(p.Rows)) && p.Rows[i].Row == row {
		return int(i)
	}
	return slices.IndexFunc(p.Rows, func(r runner.RowPlan) bool { return r.Row == row })
}

// mustFind gives the index of a row that is the plan's.
func (p *plan) mustFind(row runner.Row) int {
	i := p.find(row)
	if i < 0 {
		panic("core: a plan does not hold its row") // rows.Planner and the journal's reader both check this
	}
	return i
}

// row gives one of the plan's rows.
func (p *plan) row(row runner.Row) runner.RowPlan { return p.Rows[p.mustFind(row)] }

// at gives the place that trains a row of the plan.
func (p *plan) at(row runner.Row) (rank, micro int) {
	s := p.spots[p.mustFind(row)]
	return s.rank, s.micro
}
