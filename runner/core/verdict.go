package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// What a verdict may say. The set is closed.
const (
	VerdictRestart = "restart" // as the policy does
	VerdictReplace = "replace" // the next life on another device
	VerdictStop    = "stop"    // end the run after a checkpoint
)

// Verdicts counts what became of questions about deaths.
type Verdicts struct {
	Asked uint64
	Taken uint64
	Late  uint64 // came when the policy had decided, or about an earlier death
	Last  Judged // zero: nothing was asked yet
}

// Judged is what was done about a death that was asked about.
type Judged struct {
	Life     runner.Life // that died
	Decision string
	Device   string // of a replacement
	Reason   string
	Policy   bool // the restart policy's: the scheduler had not answered
	At       time.Time
}

// askVerdict asks about a death that the policy answers with a restart. Nothing
// waits for the answer: the backoff runs meanwhile.
func (c *Core) askVerdict(w *worker, f *runner.Failure) {
	if !c.cfg.AskVerdicts || w.life.State != life.Backoff {
		return
	}
	w.pending = w.life.Generation
	if c.barredFor(w.device) != "" && !c.movable(w) { // it fails at once
		w.pending = 0
		return
	}
	c.figures.verdicts.Asked++
	c.do(Judge{Life: w.current(), Device: w.device, Cause: f.Cause, Message: f.Message, Deaths: w.life.Strikes, Budget: c.cfg.Restart.Budget, Spares: c.spares(w)})
}

// movable reports whether a worker that waits may yet be told to go elsewhere.
func (c *Core) movable(w *worker) bool {
	return !c.end.on && w.pending != 0 && w.pending == w.life.Generation && c.now.Before(w.life.Until) && len(c.spares(w)) > 0
}

// spares gives the devices on which a worker could be started in place of its
// own: those that the configuration names, without a worker and not barred.
func (c *Core) spares(w *worker) (free []string) {
	for _, device := range c.cfg.Spares[w.id.Role] {
		used := slices.ContainsFunc(c.workers, func(o worker) bool { return o.device == device && o.life.State != life.Failed })
		if !used && c.barredFor(device) == "" {
			free = append(free, device)
		}
	}
	return free
}

// verdict takes an answer. Only the first about a worker's newest death that was
// asked about counts, and only while the run goes on. A restart or a replacement
// is for a worker that still waits; a stop also for one that was started again
// meanwhile, as it is about the run.
func (c *Core) verdict(in Verdict) {
	w := c.worker(in.Life.Worker)
	if w == nil || w.pending == 0 || w.pending != in.Life.Generation || c.end.on {
		c.figures.verdicts.Late++
		c.emit(runner.Event{Level: runner.Info, Name: "verdict not awaited", Message: fmt.Sprintf("%v: %.40q: it came twice, is about an earlier death, or the run ends", in.Life, in.Decision)})
		return
	}
	w.pending = 0
	waits := w.life.State == life.Backoff && w.life.Generation == in.Life.Generation
	taken := Judged{Life: in.Life, Decision: in.Decision, Device: in.Device, Reason: in.Reason, At: c.now}
	switch {
	case in.Decision == VerdictStop:
		c.judged(w, taken)
		c.finish(runner.ExitFailed, fmt.Sprintf("%v died, and the scheduling plugin ends the run: %s", in.Life, in.Reason), false)
	case !waits:
		c.figures.verdicts.Late++
		c.emit(of(w, runner.Info, "verdict too late", fmt.Sprintf("%v: %s came after the restart policy had decided", in.Life, in.Decision)))
	case in.Decision == VerdictReplace && !slices.Contains(c.spares(w), in.Device):
		c.emit(of(w, runner.Warn, "verdict refused", fmt.Sprintf("%v: want a free device that works, got %.80q", in.Life, in.Device)))
		c.policy(w)
		c.hold(w)
	case in.Decision == VerdictReplace:
		w.device, w.on = in.Device, c.deviceOf(in.Device)
		c.judged(w, taken)
	case in.Decision == VerdictRestart:
		c.judged(w, taken)
		c.hold(w)
	}
}

// judged notes a verdict that was taken, and tells of it.
func (c *Core) judged(w *worker, j Judged) {
	c.figures.verdicts.Taken++
	c.figures.verdicts.Last = j
	said := fmt.Sprintf("%v: %s", j.Life, j.Decision)
	if j.Decision == VerdictReplace {
		said += " on " + j.Device
	}
	if j.Reason != "" {
		said += ": " + j.Reason
	}
	c.emit(of(w, runner.Info, "verdict", said))
}

// policy notes that the restart policy decides about a death that was asked about.
func (c *Core) policy(w *worker) {
	c.figures.verdicts.Last = Judged{Life: w.current(), Decision: VerdictRestart, Policy: true, At: c.now}
}

// worker gives a worker by name, or nil.
func (c *Core) worker(id runner.Worker) *worker {
	of := c.targets
	if id.Role == runner.Drafter {
		of = c.ranks
	}
	if id.Rank < 0 || int(id.Rank) >= len(of) {
		return nil
	}
	if w := &c.workers[of[id.Rank]]; w.id == id {
		return w
	}
	return nil
}
