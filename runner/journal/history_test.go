package journal

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// history writes down what a run would: its records are checked against
// nothing while it does.
type history struct {
	t       testing.TB
	facts   Facts
	planner *rows.Planner
	plans   plans
	lineage runner.Lineage
	at      runner.Step
	out     []runner.Record
}

func newHistory(t testing.TB) *history {
	t.Helper()
	g := rand.New(rand.NewPCG(1, 1))
	ix := &rows.Index{Samples: make([]rows.SampleInfo, 24)}
	for i := range ix.Samples {
		n := uint32(2 + g.IntN(14))
		ix.Samples[i] = rows.SampleInfo{Tokens: n, Supervised: n, Anchors: n - 1}
	}
	ix.Samples[5].Anchors, ix.Samples[9].Anchors = 0, 0
	c := rows.Config{Buckets: []uint32{8, 16}, Anchors: 6, RowsPerStep: 4, Drafters: 2, Draws: 1, Schedule: rows.Schedule{Peak: 6e-4, Floor: 0.1, WarmUp: 0.2, Total: 9}}
	p, err := rows.NewPlanner(ix, c)
	if err != nil {
		t.Fatal(err)
	}
	return &history{t: t, facts: Facts{Index: ix, Config: c, BitIdentical: true}, planner: p}
}

func (h *history) add(r runner.Record) { h.out = append(h.out, r) }

func (h *history) start() {
	h.add(runner.StartRecord{Manifest: runner.Digest{7}, Lineage: h.lineage})
	h.lineage = max(1, h.lineage)
}

func (h *history) exclude() {
	h.add(runner.ExcludeRecord{Samples: []runner.Sample{5, 9}, Reason: rows.ReasonNoAnchor})
}

// plan plans the next step, arranging samples where needed.
func (h *history) plan() {
	s, ok := h.planner.Next()
	for !ok {
		e, left := h.planner.Wanted()
		order := rows.Order(3, e, h.planner.Plannable(), 1)
		order = order[len(order)-left:][:min(left, 9)]
		if err := h.planner.Feed(e, order); err != nil {
			h.t.Fatal(err)
		}
		h.add(runner.ArrangeRecord{Epoch: e, Samples: order})
		s, ok = h.planner.Next()
	}
	h.put(s)
}

func (h *history) put(s rows.Step) {
	h.plans.put(s)
	h.add(runner.PlanRecord{Plan: s.Plan, Rows: s.Rows, Chain: h.plans.chain(s.Plan.Step)})
}

func (h *history) commit() {
	h.at++
	r := runner.CommitRecord{Step: h.at, Lineage: h.lineage, Weight: math.Float32bits(8), Norm: math.Float32bits(float32(h.at)), Chain: h.plans.chain(h.at)}
	for _, rank := range h.plans.of(h.at).Plan.Rows {
		for _, row := range rank {
			if row != 0 {
				r.Rows = append(r.Rows, runner.RowLoss{Row: row, Numerator: 1 / float64(row), Denominator: 2})
			}
		}
	}
	h.add(r)
}

// skip leaves a row of the open step out, and writes it and all later plans anew.
func (h *history) skip(row runner.Row) {
	n := h.at + 1
	r := runner.SkipRecord{Step: n, Lineage: h.lineage, Row: row, Reason: "not finite"}
	for _, p := range h.plans.of(n).Rows {
		if p.Row == row {
			for _, piece := range p.Pieces {
				r.Samples, r.Draws = append(r.Samples, piece.Sample), append(r.Draws, piece.Draw)
			}
		}
	}
	h.add(r)
	for last := h.plans.last(); n <= last; n++ {
		s := *h.plans.of(n)
		if w, ok := s.Without(row); ok {
			s = w
		}
		h.put(s)
	}
}

func (h *history) restore(n runner.Step) {
	h.lineage++
	h.at = n
	h.add(runner.RestoreRecord{Step: n, Lineage: h.lineage, Chain: h.plans.chain(n)})
}

func (h *history) checkpoint() {
	h.add(runner.CheckpointRecord{Step: h.at, Name: "step-" + string(rune('0'+h.at)), Image: runner.Digest{byte(h.at)}, Chain: h.plans.chain(h.at), Best: true})
}

func (h *history) evaluation() {
	h.add(runner.EvaluationRecord{Step: h.at, What: "decode", Prompts: 8, Tokens: 768, Forwards: 150, BusyUS: 12345, Lossless: true, Numerator: 1.5, Denominator: 2, NonLoopingTokens: 500, NonLoopingForwards: 120, Looping: 2})
}

// whole is the history of a run with everything in it: two epochs and a bit, a
// skipped row, a restore in life, a crash, and a good end.
func whole(t testing.TB) *history {
	t.Helper()
	h := newHistory(t)
	h.start()
	h.exclude()
	h.evaluation()
	h.plan()
	h.plan()
	h.commit()
	h.plan()
	h.skip(h.plans.of(2).Rows[1].Row)
	h.commit()
	h.checkpoint()
	h.commit()
	h.restore(2) // all drafters died
	h.commit()
	h.plan()
	h.start() // the supervisor died
	h.restore(2)
	h.commit()
	h.commit()
	for h.at < 8 {
		h.plan()
		h.commit()
	}
	h.checkpoint()
	h.evaluation()
	h.add(runner.EndRecord{Code: 75, Reason: "stopped", Step: h.at})
	return h
}

// write writes records to a journal of its own and gives its directory.
func write(t testing.TB, records []runner.Record, roll int64) string {
	t.Helper()
	dir := t.TempDir()
	w, err := Create(dir, RunID{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	w.roll = roll
	for _, r := range records {
		if err := w.Append(r); err != nil {
			t.Fatal(err)
		}
		if _, ok := r.(runner.PlanRecord); ok { // as a run does: plans are made durable
			done := make(chan error, 1)
			w.Sync(func(err error) { done <- err })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// load reads all records of a journal.
func load(dir string) ([]Entry, *Scanned, error) {
	var out []Entry
	s, err := Scan(dir, func(e Entry) error {
		out = append(out, e)
		return nil
	})
	return out, s, err
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// oneSegment puts bytes into a directory as the only segment.
func oneSegment(t testing.TB, b []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, segmentName(1)), b, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
