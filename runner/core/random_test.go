package core

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Random histories with many deaths, at sizes that no search reaches.
func TestI6_I11_RandomHistories(t *testing.T) {
	seeds := uint64(600)
	if testing.Short() {
		seeds = 100
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 6))
		s := &setup{targets: 1 + r.IntN(2), drafters: 1 + r.IntN(3), micros: 1 + r.IntN(4), steps: 3 + r.IntN(3), slots: 1 + r.Uint32N(3), turns: r.IntN(4),
			imageEvery: runner.Step(r.IntN(3)), checkpoint: runner.Step(r.IntN(3)), budget: 100, ask: r.IntN(2) == 0, ahead: r.IntN(4), silent: r.IntN(2) == 0, verbose: true}
		if r.IntN(3) == 0 {
			s.evaluation = Evaluation{Every: 1, DecodeEvery: 2, AtStart: true, AtEnd: true, Heldout: 2, HeldoutChunk: 1, Prompts: 1, PromptChunk: 1, NewTokens: 4}
		}
		s.tune = func(c *Config) { // nothing is ever overdue, but the tick for each must be asked for
			for _, d := range []*time.Duration{&c.Deadlines.Launch, &c.Deadlines.WarmUp, &c.Deadlines.Order, &c.Deadlines.Step, &c.Deadlines.Abort, &c.Deadlines.Image, &c.Deadlines.Evaluate, &c.Deadlines.Drain} {
				*d = time.Duration(r.IntN(5)) * time.Hour
			}
		}
		if r.IntN(2) == 0 {
			s.spares, s.verdicts, s.backoff, s.patient = r.IntN(3), r.IntN(8), time.Duration(r.IntN(2))*time.Second, r.IntN(4) > 0
		}
		if s.verdicts > 0 && !s.patient {
			s.bars = r.IntN(2)
		}
		s.pairs = r.IntN(2) == 0
		if s.pairs && r.IntN(2) == 0 {
			s.takes = [2]time.Duration{time.Duration(r.IntN(9)), time.Duration(r.IntN(9))}
		}
		w := newWorld(s, r.IntN(8), r.IntN(4))
		w.drive(t, r, 6000)
		if w.finished.Code != runner.ExitDone && !w.stopped || w.bad != "" {
			t.Fatalf("seed %d: finished with %+v, %s\n%s", seed, w.finished, w.bad, w.history())
		}
	}
}
