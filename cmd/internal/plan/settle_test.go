package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

var auto = []string{"workers.targets=auto", "workers.drafters=auto"}

// TestSettle: counts of auto are chosen and written as law, others stay.
func TestSettle(t *testing.T) {
	h200 := []string{"costs.target_row=93ms", "costs.drafter_row=138ms", "costs.update=8300us", "training.rows_per_step=24"}
	for name, c := range map[string]struct {
		set      []string
		m        Machine
		t, d     config.Count
		colocate string
		note     string
	}{
		"eight GPUs":                {append(h200, auto...), gpusOf(140, 140, 140, 140, 140, 140, 140, 140), 8, 8, "true", "the configuration's costs: target_row, drafter_row, update; the rest is reckoned"},
		"rows that five divide":     {append(h200, append(auto, "training.rows_per_step=40", "workers.colocate=false")...), gpusOf(140, 140, 140, 140, 140, 140, 140, 140), 3, 5, "false", "chosen: 3 targets, 5 drafters"},
		"rows that five do not":     {append(h200, append(auto, "workers.colocate=false")...), gpusOf(140, 140, 140, 140, 140, 140, 140, 140), 4, 4, "false", "rows_per_step 24 is no multiple of 5 drafters: 25 would be"},
		"no memory for pairs":       {append(h200, auto...), gpusOf(45, 45, 45, 45, 45, 45, 45, 45), 4, 4, "false", "chosen"},
		"drafters given":            {append(h200, "workers.targets=auto", "workers.drafters=3"), gpusOf(140, 140, 140, 140, 140, 140, 140, 140), 5, 3, "false", "chosen: 5 targets, 3 drafters"},
		"one GPU, nothing measured": {append(auto, "training.rows_per_step=8"), gpusOf(140), 1, 1, "true", "reckoned from the arithmetic at 500000 GFLOP/s"},
	} {
		conf := large(t, c.set...)
		before := conf.Workers
		p, settled, err := For(conf, qwen(), c.m, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		w := settled.Workers
		if w.Targets != c.t || w.Drafters != c.d || w.Colocate != c.colocate || len(p.Workers) != int(c.t+c.d) || p.Arenas.Count != int(c.t) {
			t.Errorf("%s: want %d, %d and %s, got %+v: %q", name, c.t, c.d, c.colocate, w, p.Notes)
		}
		if !strings.Contains(strings.Join(p.Notes, "\n"), c.note) || p.Chosen == nil {
			t.Errorf("%s: want a note of %q, got %q", name, c.note, p.Notes)
		}
		if conf.Workers.Targets != before.Targets || conf.Workers.Drafters != before.Drafters || conf.Workers.Colocate != before.Colocate {
			t.Errorf("%s: the configuration was changed", name)
		}
	}
	conf := large(t)
	if p, same, err := For(conf, qwen(), gpusOf(140), nil); err != nil || same != conf || p.Chosen != nil {
		t.Errorf("counts that are given: got %+v, %v", p.Chosen, err)
	}
	if _, err := Make(large(t, append(auto, "training.rows_per_step=8")...), qwen(), gpusOf(140)); runner.KindOf(err) != runner.Internal || err == nil {
		t.Errorf("counts that nobody settled: got %v", err)
	}
}

// TestCostsOfASummary: what workers computed, by rows handed off.
func TestCostsOfASummary(t *testing.T) {
	c := large(t)
	worker := func(role runner.Role, rank int, usage map[string]float64) admin.SummaryWorker {
		return admin.SummaryWorker{Name: runner.Worker{Role: role, Rank: runner.Rank(rank)}, Role: role, Usage: usage, Certificate: &admin.SummaryCertificate{Buckets: []uint32{3072}}}
	}
	// 100 rows in 25 steps of 4 were handed off here; the run has 200 rows in 50 steps over two lives.
	s := admin.Summary{Name: "before", Rows: 200, Steps: 50, Tokens: 200 * 3000, Arenas: []admin.SummaryArena{{HandOffs: 60}, {HandOffs: 40}}, Workers: []admin.SummaryWorker{
		worker(runner.Target, 0, map[string]float64{"produce": 6, "slot": 9}), worker(runner.Target, 1, map[string]float64{"produce": 3.3}),
		worker(runner.Drafter, 0, map[string]float64{"train": 7, "commit": 0.2}), worker(runner.Drafter, 1, map[string]float64{"train": 6.8, "commit": 0.2, "row": 1})}}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Costs(c, qwen(), text)
	if err != nil {
		t.Fatal(err)
	}
	r := got.Rows[0]
	if math.Abs(r.TargetMS-93) > 1e-9 || math.Abs(r.DrafterMS-138) > 1e-9 || math.Abs(got.Costs.UpdateMS-8) > 1e-9 || r.Tokens != 3000 || !got.Measured || !strings.Contains(got.Source, "measured by run before over 100 rows") {
		t.Errorf("got %+v", got)
	}
	// Blocks of a row in all draws are part of the shapes.
	for blocks, refused := range map[int]bool{c.Training.Anchors: false, 2 * c.Training.Anchors: true} {
		s.BlocksPerRow = blocks
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Costs(c, qwen(), text); (err != nil) != refused || refused && !strings.Contains(err.Error(), "shape.anchors: want the configuration's") {
			t.Errorf("%d blocks a row: got %v", blocks, err)
		}
	}
	s.BlocksPerRow = 0
	if got.Costs.VoteMS != voteMS {
		t.Errorf("votes of two: got %g ms", got.Costs.VoteMS)
	}
	s.Workers[2].Usage["vote"], s.Workers = 0.1, s.Workers[:3]
	if text, err = json.Marshal(s); err != nil {
		t.Fatal(err)
	}
	if got, err = Costs(c, qwen(), text); err != nil || math.Abs(got.Costs.VoteMS-4) > 1e-9 {
		t.Errorf("votes of one: got %g ms, %v", got.Costs.VoteMS, err)
	}
	s.Workers[0].Certificate.Buckets = []uint32{2048}
	if text, err = json.Marshal(s); err != nil {
		t.Fatal(err)
	}
	if _, err = Costs(c, qwen(), text); err == nil || !strings.Contains(err.Error(), "shape.bucket: want the configuration's 3072, got 2048") || runner.HintOf(err) == "" {
		t.Errorf("another bucket: got %v", err)
	}
	s.Arenas = nil
	if text, err = json.Marshal(s); err != nil {
		t.Fatal(err)
	}
	if _, err = Costs(c, qwen(), text); err == nil || !strings.Contains(err.Error(), "want a run that trained") {
		t.Errorf("no rows: got %v", err)
	}
	if _, err = Costs(c, qwen(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "read trace: format") {
		t.Errorf("no trace: got %v", err)
	}
}

// TestReckoned: what is reckoned for the reference workload lies within a third
// of what was measured on an H200 (python/bench/LOG.md): a row of 138 ms and an
// update of 8.3 ms.
func TestReckoned(t *testing.T) {
	got, err := Costs(large(t), qwen(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Rows[0].DrafterMS / 138; r < 0.75 || r > 1.34 {
		t.Errorf("a drafter's row: reckoned %.1f ms", got.Rows[0].DrafterMS)
	}
	if r := got.Costs.UpdateMS / 8.3; r < 0.9 || r > 1.1 {
		t.Errorf("an update: reckoned %.2f ms", got.Costs.UpdateMS)
	}
	if got.Measured || got.Check() != nil {
		t.Errorf("got %+v", got)
	}
}

// decision is what a scheduler decides for a configuration that leaves counts
// open, on cells of eight GPUs that are alike: the counts, once for all of them;
// where each cell's workers run; and which target of each makes its next row.
func decision(b *testing.B, cells int) func() {
	c, err := config.Load("", []string{"workers.device=cuda", "training.compute_dtype=bfloat16", "target.embedded.sequence_tokens=2048", "target.dtype=bfloat16", "training.rows_per_step=24", "workers.targets=auto", "workers.drafters=auto"})
	if err != nil {
		b.Fatal(err)
	}
	base := simulate.Trace{Format: simulate.Format, Name: "b", Rows: []simulate.Row{{Tokens: 3072, TargetMS: 93, DrafterMS: 138}}, Costs: simulate.Costs{UpdateMS: 8.3, VoteMS: 1, OrderMS: 0.1, HandOffMS: 1.5}}
	m, t := gpusOf(140, 140, 140, 140, 140, 140, 140, 140), simulate.Default(1).Draw(base)
	return func() {
		settled, _, err := Settle(c, c.EmbeddedModel(), m, t)
		if err != nil {
			b.Fatal(err)
		}
		w, err := workOf(settled, c.EmbeddedModel())
		if err != nil {
			b.Fatal(err)
		}
		of := w.memory(w.onTarget())
		for range cells {
			if _, err := placement.Place(w.wanted(m, of)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkDecision is a whole decision, for one cell and for 64: at most 5 ms.
func BenchmarkDecision(b *testing.B) {
	for _, cells := range []int{1, 64} {
		b.Run(fmt.Sprint("cells=", cells), func(b *testing.B) {
			decide := decision(b, cells)
			before, n := used(), 0
			for b.Loop() {
				n++
				decide()
			}
			b.ReportMetric(float64(used()-before)/float64(n)/1e6, "cpu-ms/op")
		})
	}
}

// used is the CPU time of this process: what a decision takes on quiet cores.
func used() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
