package drive_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// BenchmarkLoop64 asks the loop something while 64 fake workers keep it as busy
// as it can be: 32 targets and 32 drafters whose orders cost no time. What it
// reports is how long a question, like any reply, waits for its turn and its
// answer.
func BenchmarkLoop64(b *testing.B) {
	r := newRig(b)
	r.config.Core.Workers = nil
	for rank := range runner.Rank(32) {
		for _, role := range []runner.Role{runner.Target, runner.Drafter} {
			r.config.Core.Workers = append(r.config.Core.Workers, core.Worker{Worker: runner.Worker{Role: role, Rank: rank}, Device: "cpu"})
		}
	}
	r.config.Core.Devices = map[string]int{"cpu": 64}
	r.config.Core.GateWidth, r.config.Core.HorizonSteps = 8, 4
	r.config.Core.Evaluation, r.config.Core.ImageEvery, r.config.Core.Checkpoint = core.Evaluation{}, 0, 0
	r.rows.Drafters, r.rows.RowsPerStep = 32, 64
	for range 20_000 { // so that an epoch has many steps
		r.index.Samples = append(r.index.Samples, rows.SampleInfo{Tokens: 16, Supervised: 8, Anchors: 7})
	}
	steps := runner.Step(max(250, b.N/20)) // fewer give too few questions for a p99
	r.config.Core.Steps, r.rows.Schedule.Total = steps, uint64(steps)

	var took []time.Duration
	var asking sync.WaitGroup
	var begin, end sync.Once
	done := make(chan struct{})
	ask := func(l *drive.Loop) { // ends with the last step
		for {
			select {
			case <-done:
				return
			default:
			}
			start := time.Now()
			if _, ok := l.View(context.Background()); !ok {
				return
			}
			took = append(took, time.Since(start))
		}
	}
	r.seen = func(l *drive.Loop, e runner.Event) {
		if e.Name == "step decided" && e.Step >= 5 {
			begin.Do(func() { asking.Go(func() { ask(l) }) })
		}
		if e.Name == "step decided" && e.Step == steps {
			end.Do(func() { close(done) })
		}
	}
	start := time.Now()
	if f, v := r.run(); f.Code != runner.ExitDone {
		b.Fatalf("finish %+v, failures %+v", f, v.Failures)
	}
	asking.Wait()
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1))].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(float64(steps)/time.Since(start).Seconds(), "steps/s")
	b.ReportMetric(float64(len(took)), "asked")
}
