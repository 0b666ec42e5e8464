package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// drive lets things happen until the run is finished, always the first that
// is no bad luck, or a random one.
func (w *world) drive(t *testing.T, r *rand.Rand, limit int) {
	t.Helper()
	for range limit {
		ms := w.moves()
		if w.bad != "" {
			t.Fatalf("%s\n%s", w.bad, w.history())
		}
		if w.finished != nil {
			return
		}
		good := ms[:0:0]
		for _, m := range ms {
			if !m.fault() || r != nil && r.IntN(12) == 0 {
				good = append(good, m)
			}
		}
		if len(good) == 0 {
			t.Fatalf("stuck\n%s", w.history())
		}
		m := good[0]
		if r != nil {
			m = good[r.IntN(len(good))]
		}
		w.apply1(m)
	}
	if w.finished == nil {
		t.Fatalf("not finished after %d moves\n%s", limit, w.history())
	}
}

func (w *world) history() (s string) {
	for _, l := range w.trace[max(0, len(w.trace)-150):] {
		s += l[:min(len(l), 260)] + "\n"
	}
	return s + w.state()
}

func TestUndisturbedRun(t *testing.T) {
	for _, s := range []setup{
		{targets: 1, drafters: 1, micros: 1, steps: 3, slots: 1},
		{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 3, turns: 2, imageEvery: 1},
		{targets: 2, drafters: 2, micros: 3, steps: 4, slots: 2, turns: 1, imageEvery: 2, checkpoint: 2, ask: true, ahead: 2},
		{targets: 1, drafters: 3, micros: 2, steps: 3, slots: 3, evaluation: Evaluation{Every: 1, DecodeEvery: 2, AtStart: true, AtEnd: true, Heldout: 5, HeldoutChunk: 2, Prompts: 3, PromptChunk: 2, NewTokens: 4}},
	} {
		s.verbose = true
		w := newWorld(&s, 0, 0)
		w.drive(t, nil, 2000)
		if w.finished.Code != runner.ExitDone {
			t.Errorf("%+v: finished with %+v\n%s", s, w.finished, w.history())
		}
	}
}

// state says where everything stands.
func (w *world) state() (s string) {
	c := w.core
	s = fmt.Sprintf("decided %d planned %d step %+v gate %v restore %+v evals %d end %+v crashes %d\n", c.decided, c.planned, c.step, c.gate.Holders, c.restore, len(c.evals), c.end, w.crashes)
	for i := range c.workers {
		k := &c.workers[i]
		s += fmt.Sprintf("%v %v has %v at %d micro %d buffers %+v orders", k.current(), k.life.State, k.has, k.at, k.micro, k.buffers)
		for _, o := range k.orders {
			s += fmt.Sprintf(" %s/%d", runner.OrderType(o.order), o.turn)
		}
		s += fmt.Sprintf("; main %d fast %d\n", len(w.procs[i].main), len(w.procs[i].fast))
	}
	for _, a := range c.ledger.Arenas {
		s += fmt.Sprintf("arena %d %+v\n", a.Arena, a.Slots)
	}
	for _, p := range c.plans {
		s += fmt.Sprintf("plan %d %v\n", p.Plan.Step, p.Plan.Rows)
	}
	return s
}

// What the core's decisions cost per committed row, at the shape of the
// embedded default: the time inside Handle alone.
func BenchmarkHandlePerRow(b *testing.B) {
	s := setup{targets: 1, drafters: 2, micros: 4, steps: 50, slots: 3, turns: 2, imageEvery: 10, budget: 9}
	rows, inside := 0, time.Duration(0)
	for b.Loop() {
		w := newWorld(&s, 0, 0)
		w.clock = &inside
		for w.finished == nil {
			w.apply1(w.moves()[0])
		}
		rows += s.drafters * s.micros * s.steps
	}
	b.ReportMetric(float64(inside.Nanoseconds())/float64(rows), "ns/row")
}

// What an input costs with 64 workers on one device, whose answers come in any
// order: the time inside Handle alone, after the first step.
func BenchmarkHandle64(b *testing.B) {
	s := setup{targets: 32, drafters: 32, micros: 2, steps: 12, slots: 3, turns: 64, budget: 9, tune: func(c *Config) {
		c.Deadlines.Order, c.Deadlines.Step = time.Hour, time.Hour
	}}
	inputs, inside := 0, time.Duration(0)
	for b.Loop() {
		r := rand.New(rand.NewPCG(64, 64))
		w := newWorld(&s, 0, 0)
		w.after = func([]Action) {
			if w.core.decided > 0 {
				inputs++
				w.clock = &inside
			}
		}
		for w.finished == nil {
			ms := w.moves()
			w.apply1(ms[r.IntN(len(ms))])
		}
	}
	b.ReportMetric(float64(inside.Nanoseconds())/float64(inputs), "ns/input")
}
