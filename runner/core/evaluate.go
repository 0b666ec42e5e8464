package core

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// evaluation is one evaluation of an image, in one target worker from its
// first order to its last: that worker keeps the drafter and the texts.
type evaluation struct {
	step    runner.Step
	image   ImageID
	loss    bool
	decode  bool
	target  runner.Life // zero: not begun
	todo    []question
	loaded  bool
	done    uint64 // prompts and samples answered, of total
	total   uint64
	results []runner.EvaluationRecord
}

// question is one kind of evaluation, asked in chunks.
type question struct {
	what  string
	next  uint32
	count uint32
	chunk uint32
}

// evaluationDue says what must be evaluated at step n and has not been.
func (c *Core) evaluationDue(n runner.Step) (loss, decode bool) {
	e := c.cfg.Evaluation
	edge := n == 0 && e.AtStart || n > 0 && c.over(n+1) && e.AtEnd
	loss = e.Heldout > 0 && (edge || every(n, e.Every)) && !c.figures.evaluated(n, "loss")
	decode = e.Prompts > 0 && (edge || every(n, e.DecodeEvery)) && !c.figures.evaluated(n, "decode")
	if c.end.on && c.end.code != runner.ExitDone {
		return false, false
	}
	for _, v := range c.evals {
		if v.step == n {
			return false, false
		}
	}
	return loss, decode
}

// queueEvaluation queues what is due at the decided step, of its new image.
func (c *Core) queueEvaluation(id ImageID) {
	if loss, decode := c.evaluationDue(c.decided); loss || decode {
		c.evals = append(c.evals, evaluation{step: c.decided, image: id, loss: loss, decode: decode})
	}
}

// evaluating queues an evaluation of an image that is at hand already: of a
// checkpoint that a finished run was resumed from.
func (c *Core) evaluating() bool {
	im := c.imageOf(c.decided)
	if im == nil || im.state != valid || c.restore.wanted {
		return false
	}
	n := len(c.evals)
	c.queueEvaluation(im.id)
	return len(c.evals) > n
}

// wantsEvaluate reports whether w may be given the next question.
func (c *Core) wantsEvaluate(w *worker) bool {
	if len(c.evals) == 0 || c.imageBytes() == 0 || w.waits(is[runner.Produce]) || w.waits(is[runner.Evaluate]) {
		return false
	}
	e := &c.evals[0]
	im := c.imageAt(e.image)
	return im != nil && im.state == valid && (e.target == (runner.Life{}) || e.target == w.current())
}

// evaluate gives w the next chunk of the first evaluation.
func (c *Core) evaluate(w *worker) {
	e := &c.evals[0]
	if e.target == (runner.Life{}) {
		c.beginEvaluation(e, w)
	}
	q := &e.todo[0]
	o := runner.Evaluate{Step: e.step, What: q.what, First: q.next, Count: min(q.chunk, q.count-q.next), NewTokens: c.cfg.Evaluation.NewTokens}
	image := ImageID(0)
	if q.what != "plain" && !e.loaded {
		o.NBytes, image, e.loaded = c.imageBytes(), e.image, true
	}
	q.next += o.Count
	w.evaluated = true
	c.send(w, o, oneTurn, image)
}

// beginEvaluation lays out the questions. Plain decoding comes before the
// drafter's, once a life: the worker keeps its texts to compare with.
func (c *Core) beginEvaluation(e *evaluation, w *worker) {
	v := c.cfg.Evaluation
	e.target, e.todo, e.results, e.loaded, e.done, e.total = w.current(), nil, nil, false, 0, 0
	c.figures.moments.span(e.step, c.over(e.step+1)).begin(c.now)
	if e.loss {
		e.todo = append(e.todo, question{what: "loss", count: v.Heldout, chunk: v.HeldoutChunk})
	}
	if e.decode {
		if !w.plain {
			e.todo = append(e.todo, question{what: "plain", count: v.Prompts, chunk: v.PromptChunk})
		}
		e.todo = append(e.todo, question{what: "decode", count: v.prompts(e.step), chunk: v.PromptChunk})
	}
	for _, q := range e.todo {
		e.total += uint64(q.count)
	}
}

// prompts gives how many prompts are decoded with the drafter of step n: before
// training all of them show the same, one token a forward.
func (v Evaluation) prompts(n runner.Step) uint32 {
	if n == 0 && v.PromptsAtStart > 0 {
		return min(v.PromptsAtStart, v.Prompts)
	}
	return v.Prompts
}

// evaluated adds a chunk's results up.
func (c *Core) evaluated(w *worker, o order, r runner.Evaluated) bool {
	order := o.order.(runner.Evaluate)
	if r.What != order.What || r.Step != order.Step {
		return false
	}
	if len(c.evals) == 0 || c.evals[0].target != w.current() {
		return true // dropped by a restore or a stop
	}
	e := &c.evals[0]
	e.done += uint64(order.Count)
	e.add(order, r)
	if q := e.todo[0]; q.next < q.count {
		return true
	}
	w.plain = w.plain || e.todo[0].what == "plain"
	if e.todo = e.todo[1:]; len(e.todo) == 0 {
		c.scored(*e)
		c.evals = c.evals[1:]
	}
	return true
}

func (e *evaluation) add(o runner.Evaluate, r runner.Evaluated) {
	i := slices.IndexFunc(e.results, func(x runner.EvaluationRecord) bool { return x.What == o.What })
	if i < 0 {
		i = len(e.results)
		e.results = append(e.results, runner.EvaluationRecord{Step: e.step, What: o.What, Lossless: true})
	}
	x := &e.results[i]
	x.Prompts += o.Count
	x.Tokens += r.Tokens
	x.Forwards += r.Forwards
	x.BusyUS += r.BusyUS
	x.Lossless = x.Lossless && (r.Lossless || o.What != "decode")
	x.Numerator += r.Numerator
	x.Denominator += r.Denominator
	for _, p := range r.Prompts {
		if p.Looping {
			x.Looping++
			continue
		}
		x.NonLoopingTokens += uint64(p.Tokens)
		x.NonLoopingForwards += uint64(p.Forwards)
	}
}

// scored records the results, and has the state published if it is the best.
func (c *Core) scored(e evaluation) {
	c.figures.moments.span(e.step, c.over(e.step+1)).end(c.now, e.total)
	for _, x := range e.results {
		c.append(x)
		c.figures.evaluation(x)
		c.emit(evaluationEvent(x))
		if x.What != "loss" || c.cfg.ForgetBest || !c.figures.best(x) || x.Step == 0 {
			continue
		}
		if im := c.imageAt(e.image); im != nil {
			im.best = true
		}
	}
	if len(e.results) > 0 {
		c.sync(c.journal.number)
	}
}

func evaluationEvent(x runner.EvaluationRecord) runner.Event {
	e := runner.Event{Level: runner.Info, Name: "evaluated", Step: x.Step, Message: x.What, Figures: map[string]float64{"prompts": float64(x.Prompts)}}
	if x.Denominator > 0 {
		e.Figures["loss"] = x.Numerator / x.Denominator
	}
	if x.Forwards > 0 && x.What != "loss" {
		e.Figures["acceptance"] = float64(x.Tokens) / float64(x.Forwards)
	}
	if x.BusyUS > 0 {
		e.Figures["tokens_per_s"] = float64(x.Tokens) / float64(x.BusyUS) * 1e6
	}
	if x.NonLoopingForwards > 0 {
		e.Figures["acceptance_nonlooping"] = float64(x.NonLoopingTokens) / float64(x.NonLoopingForwards)
	}
	return e
}

// evaluationLost begins an evaluation anew whose target died.
func (c *Core) evaluationLost(w *worker) {
	for i := range c.evals {
		if c.evals[i].target == w.current() {
			c.evals[i].target = runner.Life{}
		}
	}
}
