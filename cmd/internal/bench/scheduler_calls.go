package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
)

// What a question is measured at: a horizon of some steps, from the pool that a
// run shows, and from one that holds a whole epoch.
const (
	askedCount   = 200
	shownPool    = 1024
	largePool    = 20_000
	askedTargets = 5
	patience     = time.Minute
)

// calls measures the plugin's answers in a process of its own, one question at
// a time, and gives its name.
func (r *Report) calls(ctx context.Context, p *Python, e host.Entry, n int) (name string, err error) {
	o := host.Defaults()
	o.Directory, o.LogPath = p.dir, func(int) string { return filepath.Join(p.dir, "plugin.log") }
	o.Python = p.interpreter             // for a script, as a run lends the workers'
	o.Start, o.Call = patience, patience // a late answer is measured, not refused
	d, err := host.Describe(ctx, e, o)
	if err != nil {
		return "", err
	}
	e.Name = d.Name
	plugin, err := host.Start(ctx, e, o)
	if err != nil {
		return "", err
	}
	defer func() { _ = plugin.Close() }() // what it would say concerns no figure
	for _, q := range questions(plugin, goalOf(e)) {
		if !plugin.Can(q.of) {
			continue
		}
		took := make([]time.Duration, n)
		for i := range took {
			began := time.Now()
			if err := q.ask(ctx); err != nil {
				return "", err
			}
			took[i] = time.Since(began)
		}
		took = sortedCopy(took)
		r.add(q.name+" p50", micro(quantile(took, 0.5)), "us", 0, q.goal)
		r.add(q.name+" p99", micro(quantile(took, 0.99)), "us", 0, nil)
	}
	r.Facts["questions"] = fmt.Sprintf("%d of each kind", n)
	return d.Name, nil
}

type measured struct {
	name string
	of   scheduler.Capability
	goal *Goal // of the p50, in microseconds
	ask  func(context.Context) error
}

// goalOf is what a plugin's answers may take at their median, in microseconds.
func goalOf(e host.Entry) *Goal {
	if e.Script() {
		return atMost(600)
	}
	return atMost(300)
}

func questions(p *host.Plugin, goal *Goal) []measured {
	assign := scheduler.AssignRequest{Row: 1, Bucket: 3072, Tokens: 3000}
	for rank := range runner.Rank(askedTargets) {
		assign.Free = append(assign.Free, runner.Worker{Role: runner.Target, Rank: rank})
	}
	all := []measured{{fmt.Sprintf("assign, %d targets", askedTargets), scheduler.Assign, goal, func(ctx context.Context) error {
		_, err := p.Assign(ctx, assign)
		return err
	}}}
	for _, n := range []int{shownPool, largePool} {
		q := scheduler.ArrangeRequest{Epoch: 1, Count: askedCount, Left: largePool, Total: largePool, Sources: []scheduler.Source{{Name: "bench"}}}
		for i := range n {
			tokens := uint32(24 + i*31%3000)
			q.Pool = append(q.Pool, scheduler.Candidate{Sample: runner.Sample(i * 7919 % largePool), Tokens: tokens, Supervised: tokens / 2, Anchors: tokens / 3})
		}
		all = append(all, measured{fmt.Sprintf("arrange %d, %d of %d shown", askedCount, n, largePool), scheduler.Arrange, goalOn(n == shownPool, goal),
			func(ctx context.Context) error {
				_, err := p.Arrange(ctx, q)
				return err
			}})
	}
	return all
}
