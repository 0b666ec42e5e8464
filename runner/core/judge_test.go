package core

import (
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// What a plugin of the model says about a death.
const (
	saysRestart = iota
	saysReplace // by the first spare that was offered
	saysTaken   // by a device that has a worker
	saysStop
	sayings
)

// asks notes a question, and checks that it is about a death that the policy
// answers, and offers what is free alone.
func (w *world) asks(a Judge) {
	k := w.core.worker(a.Life.Worker)
	waits := k.life.State == life.Backoff && k.life.Generation == a.Life.Generation
	again := w.setup.backoff == 0 && k.life.State == life.Launching && k.life.Generation == a.Life.Generation+1
	if !waits && !again || w.ending { // it may end with the same input
		w.fault("a verdict is asked about %v, whose worker is %v", a.Life, k.life.State)
	}
	for i := range w.core.workers {
		if o := &w.core.workers[i]; slices.Contains(a.Spares, o.device) {
			w.fault("%s is offered in place of %v, and has %v", o.device, a.Life, o.id)
		}
	}
	w.judging = append(slices.Clip(w.judging), a)
}

// placed checks that a life starts on no barred device, and alone where it was
// moved to.
func (w *world) placed(l runner.Life, device string) {
	if why := w.core.barredFor(device); why != "" {
		w.fault("%v starts on %s: %s", l, device, why)
	}
	own := slices.ContainsFunc(w.core.cfg.Workers, func(x Worker) bool { return x.Worker == l.Worker && x.Device == device })
	if !own && !strings.HasPrefix(device, "spare") {
		w.fault("%v starts on %s, which is neither its own nor a spare", l, device)
	}
	for i := range w.procs {
		if p := &w.procs[i]; p.up && p.device == device && p.life.Worker != l.Worker && strings.HasPrefix(device, "spare") {
			w.fault("%v starts on %s, where %v runs", l, device, p.life)
		}
	}
}

// verdictMoves: any answer to any question that was ever asked, as long as the
// plugin has answers left; and time, where somebody waits for it.
func (w *world) verdictMoves() (ms []move) {
	if w.verdicts > 0 {
		for i := range w.judging {
			for n := range sayings {
				if n == saysStop && w.setup.patient {
					continue
				}
				if n != saysReplace || len(w.judging[i].Spares) > 0 {
					ms = append(ms, move{verb: judge, i: i, n: n})
				}
			}
		}
	}
	if w.bars > 0 {
		for i := range w.core.workers {
			ms = append(ms, move{verb: bar, i: i})
		}
	}
	if w.setup.backoff > 0 && slices.ContainsFunc(w.core.workers, func(k worker) bool { return k.life.State == life.Backoff && w.now.Before(k.life.Until) }) {
		ms = append(ms, move{verb: wait})
	}
	return ms
}

// pass lets a verdict come, or time pass.
func (w *world) pass(m move) {
	switch m.verb {
	case wait:
		w.now = w.now.Add(w.setup.backoff << 10)
		w.give(Tick{})
	case bar:
		w.bars, w.stopped = w.bars-1, true
		w.give(DeviceUnfit{Device: w.core.workers[m.i].device, Reason: "it is hot"})
	default:
		w.verdicts--
		q := w.judging[m.i]
		in := Verdict{Life: q.Life, Reason: "no more of this"}
		switch m.n {
		case saysRestart:
			in.Decision = VerdictRestart
		case saysReplace:
			in.Decision, in.Device = VerdictReplace, q.Spares[0]
		case saysTaken:
			in.Decision, in.Device = VerdictReplace, w.core.workers[0].device
		case saysStop:
			in.Decision, w.stopped = VerdictStop, true
		}
		w.give(in)
	}
	if w.bad == "" {
		w.check()
	}
}

// verdicts adds to a state's key what answers may still come, and where workers are.
func (k *key) verdicts() {
	k.n(k.w.verdicts, k.w.bars, len(k.w.judging), boolInt(k.w.stopped))
	for _, b := range k.w.core.barred {
		k.b = append(k.b, b.device...)
	}
	for _, q := range k.w.judging {
		k.n(int(q.Life.Worker.Role[0]), int(q.Life.Worker.Rank), int(q.Life.Generation), len(q.Spares))
	}
	for i := range k.w.core.workers {
		x := &k.w.core.workers[i]
		k.n(int(x.pending), boolInt(k.w.now.Before(x.life.Until)))
		if k.w.setup.spares > 0 {
			k.b = append(k.b, x.device...)
			k.b = append(k.b, k.w.procs[i].device...)
		}
	}
}
