package host

import (
	"fmt"
	"os"
	"path/filepath"
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
		timed(b, p, func() error { _, err := p.Assign(b.Context(), assign); return err })
	})
	for _, n := range []int{200, 1024, 20_000} { // 1024: what a run shows of a pool of any size
		q := scheduler.ArrangeRequest{Epoch: 1, Count: 200, Left: n, Total: n, Sources: []scheduler.Source{{Name: "x"}}}
		for i := range n {
			q.Pool = append(q.Pool, scheduler.Candidate{Sample: runner.Sample(i), Tokens: 100, Supervised: 50, Anchors: 40})
		}
		b.Run(fmt.Sprintf("arrange 200 of/%d", n), func(b *testing.B) {
			timed(b, p, func() error { _, err := p.Arrange(b.Context(), q); return err })
		})
	}
}

// timed reports the median, the 99th percentile, and the processor time of a
// call on either side: latency depends on what else the machine does, that little.
func timed(b *testing.B, p *Plugin, ask func() error) {
	var took []time.Duration
	pid := p.State().Pid
	ours, theirs := spent(b, os.Getpid()), spent(b, pid)
	for b.Loop() {
		began := time.Now()
		if err := ask(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(len(took)) }
	b.ReportMetric(each(spent(b, os.Getpid())-ours), "host-cpu-µs")
	b.ReportMetric(each(spent(b, pid)-theirs), "plugin-cpu-µs")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// spent is the processor time of a process's threads.
func spent(b *testing.B, pid int) (d time.Duration) {
	b.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(all) == 0 {
		b.Fatalf("want threads of %d, got %v, %v", pid, all, err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			b.Fatal(err)
		}
		d += time.Duration(ns)
	}
	return d
}
