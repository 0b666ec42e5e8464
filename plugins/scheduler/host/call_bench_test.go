package host

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// BenchmarkCalls asks a plugin in a process of its own, over mutual TLS: one
// question at a time, as a run does.
func BenchmarkCalls(b *testing.B) {
	o := Defaults()
	o.Directory = short(b)
	p, err := Start(b.Context(), entry(b, "good"), o)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	calls(b, p)
}

// calls are the questions of a run's steps.
func calls(b *testing.B, p *Plugin) {
	assign := scheduler.AssignRequest{Row: 1, Bucket: 3072, Tokens: 3000}
	for rank := range 5 {
		assign.Free = append(assign.Free, runner.Worker{Role: runner.Target, Rank: runner.Rank(rank)})
	}
	b.Run("assign/5 targets", func(b *testing.B) {
		timed(b, func() error { _, err := p.Assign(b.Context(), assign); return err })
	})
	for _, n := range []int{200, 1024, 20_000} { // 1024: what a run shows of a pool of any size
		q := scheduler.ArrangeRequest{Epoch: 1, Count: 200, Left: n, Total: n, Sources: []scheduler.Source{{Name: "x"}}}
		for i := range n {
			q.Pool = append(q.Pool, scheduler.Candidate{Sample: runner.Sample(i), Tokens: 100, Supervised: 50, Anchors: 40})
		}
		b.Run(fmt.Sprintf("arrange 200 of/%d", n), func(b *testing.B) {
			timed(b, func() error { _, err := p.Arrange(b.Context(), q); return err })
		})
	}
}

// timed reports the median and the 99th percentile.
func timed(b *testing.B, ask func() error) {
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := ask(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
