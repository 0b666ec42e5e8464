package core

import (
	"math"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// figures is what is counted for people; no decision about state rests on it
// but three: the votes running that were not finite, which evaluations were
// made, and the best held-out loss.
type figures struct {
	total     tally
	steps     []stepTally // decided since the oldest state that a restore may go back to
	lossFirst float64
	lossLast  float64
	trained   bool      // lossFirst and lossLast are set
	notFinite int       // votes running
	losses    lossMeans // by source
	skipped   uint64    // samples settled without training
	failures  []runner.Failure
	incidents uint64 // deaths with what they took along
	degraded  []string
	arenas    []arenaFigures
	scores    []runner.EvaluationRecord
	bestStep  runner.Step
	bestLoss  float64
	hasBest   bool
	moments   Moments
	spikes    spikes
	stalls    Stalls
	restored  Restored
	verdicts  Verdicts
	accounted time.Time // when usage was put down last
}

type tally struct{ rows, samples, tokens uint64 }

type stepTally struct {
	step runner.Step
	tally
	undo []lossUndo // of the losses by source
}

type arenaFigures struct {
	kind      string
	slotBytes uint64
}

// keepDegraded bounds the reasons kept.
const keepDegraded = 10

func tallyOf(ps []runner.RowPlan) (t tally) {
	t.rows = uint64(len(ps))
	for _, p := range ps {
		t.samples += uint64(len(p.Pieces))
		for _, c := range p.Pieces {
			t.tokens += uint64(c.Tokens)
		}
	}
	return t
}

func (t *tally) add(o tally) {
	t.rows, t.samples, t.tokens = t.rows+o.rows, t.samples+o.samples, t.tokens+o.tokens
}
func (t *tally) take(o tally) {
	t.rows, t.samples, t.tokens = t.rows-o.rows, t.samples-o.samples, t.tokens-o.tokens
}

// lossOf is a step's loss: the sum of its rows' numerators over that of their weights.
func lossOf(rs []runner.RowLoss) (loss float64, ok bool) {
	n, d := 0.0, 0.0
	for _, r := range rs {
		n, d = n+r.Numerator, d+r.Denominator
	}
	if d == 0 {
		return 0, false
	}
	return n / d, true
}

func (f *figures) commit(rec runner.CommitRecord, p *plan, source func(runner.Sample) int) {
	t := stepTally{rec.Step, tallyOf(p.Rows), f.losses.commit(source, rec.Rows, p.Rows)}
	f.steps = append(f.steps, t)
	f.total.add(t.tally)
	if loss, ok := lossOf(rec.Rows); ok { // else every row of the step was skipped
		f.notFinite = 0
		if f.lossLast = loss; !f.trained {
			f.lossFirst, f.trained = loss, true
		}
	}
}

// rewind forgets what was committed and evaluated after step n.
func (f *figures) rewind(n runner.Step) {
	for len(f.steps) > 0 && f.steps[len(f.steps)-1].step > n {
		f.total.take(f.steps[len(f.steps)-1].tally)
		f.losses.takeBack(f.steps[len(f.steps)-1].undo)
		f.steps = f.steps[:len(f.steps)-1]
	}
	f.scores = slices.DeleteFunc(f.scores, func(x runner.EvaluationRecord) bool { return x.Step > n })
	f.hasBest = false
	for _, x := range f.scores {
		f.best(x)
	}
}

func (f *figures) forgetUpTo(n runner.Step) {
	f.steps = slices.DeleteFunc(f.steps, func(t stepTally) bool { return t.step <= n })
}

func (f *figures) evaluated(n runner.Step, what string) bool {
	return slices.ContainsFunc(f.scores, func(x runner.EvaluationRecord) bool { return x.Step == n && x.What == what })
}

func (f *figures) evaluation(x runner.EvaluationRecord) { f.scores = append(f.scores, x) }

// best notes a held-out loss and reports whether it is the lowest so far.
func (f *figures) best(x runner.EvaluationRecord) bool {
	if x.What != "loss" || x.Denominator <= 0 || x.Step == 0 {
		return false
	}
	loss := x.Numerator / x.Denominator
	if f.hasBest && loss >= f.bestLoss {
		return false
	}
	f.hasBest, f.bestLoss, f.bestStep = true, loss, x.Step
	return true
}

// degrade keeps a reason why the run is not as healthy as it should be.
func (f *figures) degrade(why string) {
	if f.degraded = append(f.degraded, why); len(f.degraded) > keepDegraded {
		f.degraded = f.degraded[1:]
	}
}

// checkpointed clears the reasons: what failed before has worked again.
func (f *figures) checkpointed() { f.degraded = nil }

// takeFigures takes over the counts of an earlier life.
func (c *Core) takeFigures(r *Resume) {
	f := &c.figures
	f.total = tally{r.Rows, r.Samples, r.Tokens}
	f.skipped = r.Skipped
	f.trained, f.lossFirst, f.lossLast = r.Trained, r.LossFirst, r.LossLast
	commits := map[runner.Step]runner.CommitRecord{}
	for _, x := range r.Commits {
		commits[x.Step] = x
	}
	for _, p := range r.Plans {
		if p.Plan.Step <= r.Committed {
			undo := f.losses.commit(c.cfg.SourceOf, commits[p.Plan.Step].Rows, p.Rows)
			f.steps = append(f.steps, stepTally{p.Plan.Step, tallyOf(p.Rows), undo})
		}
	}
	for _, x := range r.Evaluations {
		f.evaluation(x)
		f.best(x)
	}
}

// emitStep tells people of a decided step, and how long it waited for an image.
func (c *Core) emitStep(rec runner.CommitRecord, waited time.Duration) {
	e := runner.Event{Level: runner.Info, Name: "step decided", Step: rec.Step, Lineage: rec.Lineage, Figures: map[string]float64{"rows": float64(len(rec.Rows))}}
	if loss, ok := lossOf(rec.Rows); ok {
		e.Figures["loss"] = loss
	}
	e.Figures["lr"] = c.planOf(rec.Step).Plan.LR
	e.Figures["norm"] = float64(math.Float32frombits(rec.Norm))
	e.Figures["tokens"] = float64(c.figures.steps[len(c.figures.steps)-1].tokens)
	if waited > 0 {
		e.Figures["image_wait_ms"] = float64(waited.Microseconds()) / 1000
	}
	c.emit(e)
}
