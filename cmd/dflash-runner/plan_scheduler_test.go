package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// placing is a plugin that decides all that a plan asks: workers from the last
// device back, the shortest samples first, the last free target.
type placing struct{ scheduler.Base }

func (placing) Info() scheduler.Info { return scheduler.Info{Name: "placing", Version: "1.0.0"} }

func (placing) Place(_ context.Context, q scheduler.PlaceRequest) (out []scheduler.Placement, err error) {
	for i, n := range q.Needs {
		out = append(out, scheduler.Placement{Worker: n.Worker, Device: q.Devices[len(q.Devices)-1-i].ID})
	}
	return out, nil
}

func (placing) Arrange(_ context.Context, q scheduler.ArrangeRequest) (out []runner.Sample, err error) {
	slices.SortStableFunc(q.Pool, func(a, b scheduler.Candidate) int { return cmp.Compare(a.Tokens, b.Tokens) })
	return scheduler.First(q), nil
}

func (placing) Assign(_ context.Context, q scheduler.AssignRequest) (runner.Worker, error) {
	return q.Free[len(q.Free)-1], nil
}

// wrong answers all of it badly.
type wrong struct{ placing }

func (wrong) Info() scheduler.Info { return scheduler.Info{Name: "wrong", Version: "1.0.0"} }

func (wrong) Place(_ context.Context, q scheduler.PlaceRequest) (out []scheduler.Placement, err error) {
	for _, n := range q.Needs {
		out = append(out, scheduler.Placement{Worker: n.Worker, Device: q.Devices[0].ID})
	}
	return out, nil
}

func (wrong) Assign(context.Context, scheduler.AssignRequest) (runner.Worker, error) {
	return runner.Worker{Role: runner.Drafter}, nil
}
