package plan

import (
	"cmp"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// Setup is what simulates a plan: its workers where they are placed, on nodes
// alike. Rows of a step are the configuration's on each node.
func Setup(c *config.Config, p Plan, m Machine, t simulate.Trace, nodes, steps int) simulate.Setup {
	w := work{config: c, cuda: c.Workers.Device == "cuda"}
	s := w.layout(placement.Layout{Targets: 1, Drafters: 1}, m, t)
	s.Workers, s.Nodes, s.Steps, s.RowsPerStep = nil, nodes, steps, c.Training.RowsPerStep*nodes
	at := map[string]int{placement.CPU: 0}
	for i, g := range m.GPUs {
		at[g.UUID] = i
	}
	for _, x := range p.Workers {
		s.Workers = append(s.Workers, simulate.Worker{Worker: x.Name, Device: at[x.Device]})
	}
	return s
}

// Split is a way to divide a machine, and what is predicted of it.
type Split struct {
	placement.Layout
	RowsPerStep  int     `json:"rows_per_step"` // the configuration's, or the next multiple of the drafters
	RowsPerS     float64 `json:"rows_per_s"`
	TokensPerS   float64 `json:"tokens_per_s"`
	TargetsIdle  float64 `json:"targets_idle_share"`
	DraftersIdle float64 `json:"drafters_idle_share"`
	BoundShare   float64 `json:"of_bound"` // of the rows a second that no order of turns can beat
}

// Splits simulates every way to divide one node's GPUs between roles that uses
// all of them and that their memory holds, best first.
func Splits(c *config.Config, target config.Model, m Machine, t simulate.Trace, steps int) ([]Split, error) {
	open := *c
	open.Workers.Targets, open.Workers.Drafters, open.Workers.Colocate = config.Auto, config.Auto, "auto"
	w, err := workOf(&open, target)
	if err != nil {
		return nil, err
	}
	all, err := w.wanted(m, w.memory(w.onTarget())).Layouts()
	if err != nil {
		return nil, err
	}
	var out []Split
	for _, l := range all {
		s := w.layout(l, m, t)
		s.Steps = steps
		r, err := simulate.Run(s)
		if err != nil {
			return nil, err
		}
		split := Split{Layout: l, RowsPerStep: s.RowsPerStep, RowsPerS: r.RowsPerS(), TokensPerS: r.TokensPerS(), BoundShare: s.Bound().Seconds / r.Makespan.Seconds()}
		split.TargetsIdle, split.DraftersIdle = Idle(r.Report())
		out = append(out, split)
	}
	slices.SortStableFunc(out, func(a, b Split) int { return cmp.Compare(b.TokensPerS, a.TokensPerS) })
	return out, nil
}

// Idle gives the mean share of time in which a target, and a drafter, does not
// compute. Two that share a GPU are idle while the other computes.
func Idle(r simulate.Report) (targets, drafters float64) {
	var n [2]float64
	for _, w := range r.Workers {
		if w.Name.Role == runner.Target {
			targets, n[0] = targets+1-w.Busy, n[0]+1
		} else {
			drafters, n[1] = drafters+1-w.Busy, n[1]+1
		}
	}
	return targets / max(1, n[0]), drafters / max(1, n[1])
}
