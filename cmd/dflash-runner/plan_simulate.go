package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// simulated is `plan --simulate --json`.
type simulated struct {
	Plan       plan.Plan       `json:"plan"`
	Scheduler  *decisions      `json:"scheduler,omitempty"` // where one was named
	Simulation simulate.Report `json:"simulation"`
	Splits     []plan.Split    `json:"splits"` // of one node, best first; empty where there is one GPU, or more than 16
}

// decidedPlan is `plan --scheduler X --json`.
type decidedPlan struct {
	Plan      plan.Plan `json:"plan"`
	Scheduler decisions `json:"scheduler"`
}

// What a simulation prints at most, and looks at.
const (
	splitGPUs    = 16 // of a node, beyond which ways to divide it are not listed
	splitRows    = 20
	chartSteps   = 3
	chartColumns = 100
	maxSimulated = 100_000
)

// simulate runs the plan without workers and prints what came of it, or only
// what the scheduler that was named decided.
func (c *cli) simulate(ctx context.Context, from planned) error {
	if !from.flags.simulate && from.scheduler == nil {
		return nil
	}
	t, err := costsOf(from.config, from.target, from.flags.trace)
	if err != nil {
		return err
	}
	out := simulated{Plan: from.plan, Splits: []plan.Split{}}
	s := plan.Setup(from.config, from.plan, from.machine, t, from.nodes, from.flags.steps)
	if from.scheduler != nil {
		if err := from.scheduler.decide(ctx, &s, from); err != nil {
			return err
		}
		out.Scheduler = &from.scheduler.made
	}
	s.Trail = true
	r, err := simulate.Run(s)
	if err != nil {
		return err
	}
	if from.scheduler != nil && !c.json {
		if err := c.printDecisions(from.scheduler.made); err != nil {
			return err
		}
	}
	if !from.flags.simulate {
		if c.json {
			return c.printJSON(decidedPlan{out.Plan, from.scheduler.made})
		}
		return nil
	}
	out.Simulation = r.Report()
	if err := writeChart(from.flags.svg, r); err != nil {
		return err
	}
	if n := len(from.machine.GPUs); n > 1 && n <= splitGPUs {
		if out.Splits, err = plan.Splits(from.config, from.target, from.machine, t, from.flags.steps); err != nil {
			return err
		}
	}
	if c.json {
		return c.printJSON(out)
	}
	return c.printSimulated(out, t, r)
}

// writeChart writes the chart to a file, if one is named.
func writeChart(file string, r simulate.Result) error {
	if file == "" {
		return nil
	}
	var b bytes.Buffer
	if err := r.SVG(&b); err != nil {
		return err
	}
	if err := renameio.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return runner.Errorf(runner.Invalid, "--svg %s: %w", file, reason(err)).WithHint("name a file that can be written, in a directory that exists")
	}
	return nil
}

// reason is an error of the file system without the path in it, which may be a
// temporary file's.
func reason(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	if link := (*os.LinkError)(nil); errors.As(err, &link) {
		return link.Err
	}
	return err
}

// costsOf gives the trace that a flag names, around the configuration's costs.
func costsOf(c *config.Config, target config.Model, named string) (simulate.Trace, error) {
	seed, synthetic := strings.CutPrefix(named, "synthetic:")
	file, where := c.Costs.From, c.Place("costs.from")+": costs.from"
	if named != "" && !synthetic {
		file, where = named, "--trace "+named
	}
	var text []byte
	var err error
	if file != "" {
		if text, err = machine.Trace(file, where); err != nil {
			return simulate.Trace{}, runner.Errorf(runner.KindOf(err), "%s: %w", where, reason(err)).WithHint("%s", runner.HintOf(err))
		}
	}
	t, err := plan.Costs(c, target, text)
	if err != nil && file != "" {
		return t, runner.Errorf(runner.KindOf(err), "%s: %w", where, err).
			WithHint("%s", cmp.Or(runner.HintOf(err), "give a trace of costs, or the summary.json of an earlier run, of the configuration's shapes; or synthetic:SEED"))
	}
	if err != nil || !synthetic {
		return t, err
	}
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return t, usage("--trace: want a file or synthetic:SEED, got %q", named)
	}
	return simulate.Default(n).Draw(t), nil
}

func (c *cli) printSimulated(out simulated, t simulate.Trace, r simulate.Result) error {
	x, row := out.Simulation, t.Mean()
	if err := c.print("predicted, not measured: %s\n"+
		"  %-12s %s\n"+
		"  %-12s %.1f ms made, %.1f ms trained; update %.1f, votes %.1f, sum %.1f, hand-off %.1f ms\n"+
		"  %-12s %d steps, %d rows in %.2f s: %.2f rows/s, %.0f tokens/s (rows of %d tokens, N %d, block %d, vocabulary %d)\n"+
		"  %-12s %.2f s at least, whatever the order of turns: the steps' chain %.2f, making rows %.2f\n"+
		"  %-12s %.1f %% of all devices' time; %.1f %% at least\n",
		x.Trace, "costs", x.Source,
		"a row", row.TargetMS, row.DrafterMS, t.Costs.UpdateMS, t.Costs.VoteMS, t.Costs.SumMS, t.Costs.HandOffMS,
		"run", x.Steps, x.Rows, x.Seconds, x.RowsPerS, x.TokensPerS, x.Shape.Bucket, x.Shape.Anchors, x.Shape.Block, x.Shape.Vocabulary,
		"bound", x.Bound.Seconds, x.Bound.Chain, x.Bound.Targets,
		"idle", 100*x.IdleShare, 100*x.Bound.IdleShare); err != nil {
		return err
	}
	if err := c.printUsage(x); err != nil {
		return err
	}
	steps := min(chartSteps, x.Steps)
	until := r.Makespan * time.Duration(steps) / time.Duration(x.Steps)
	var b strings.Builder
	if err := r.Gantt(&b, 0, until, chartColumns); err != nil {
		return err
	}
	if err := c.print("the first %.2f s of node 1: %s\n%s", until.Seconds(), simulate.Legend, b.String()); err != nil {
		return err
	}
	return c.printSplits(out.Splits)
}

// printUsage prints each worker's time by what it went to, the mean of all nodes.
func (c *cli) printUsage(x simulate.Report) error {
	each := len(x.Workers) / x.Nodes
	for i := range each {
		busy, causes := 0.0, map[string]float64{}
		for n := range x.Nodes {
			w := x.Workers[n*each+i]
			busy += w.Busy / float64(x.Nodes)
			for cause, share := range w.Shares {
				causes[cause] += share / float64(x.Nodes)
			}
		}
		var parts []string
		for _, cause := range slices.Sorted(maps.Keys(causes)) {
			if causes[cause] >= 0.0005 {
				parts = append(parts, fmt.Sprintf("%s %.1f", cause, 100*causes[cause]))
			}
		}
		if err := c.print("  %-12s busy %.1f %%: %s\n", x.Workers[i].Name, 100*busy, strings.Join(parts, ", ")); err != nil {
			return err
		}
	}
	return nil
}

func (c *cli) printSplits(all []plan.Split) error {
	if len(all) == 0 {
		return nil
	}
	if err := c.print("ways to divide a node, predicted\n  %-9s %-9s %-7s %-10s %9s %11s %14s %15s %9s\n", "targets", "drafters", "shared", "rows/step", "rows/s", "tokens/s", "targets idle", "drafters idle", "of bound"); err != nil {
		return err
	}
	for _, s := range all[:min(len(all), splitRows)] {
		if err := c.print("  %-9d %-9d %-7v %-10d %9.2f %11.0f %12.1f %% %13.1f %% %7.1f %%\n", s.Targets, s.Drafters, s.Paired, s.RowsPerStep, s.RowsPerS, s.TokensPerS,
			100*s.TargetsIdle, 100*s.DraftersIdle, 100*s.BoundShare); err != nil {
			return err
		}
	}
	return nil
}
