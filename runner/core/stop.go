package core

import (
	"fmt"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// ending is how the run ends, once it is known to.
type ending struct {
	on       bool
	quick    bool // nothing more is saved
	asked    bool // a stop asked for the quick end: its code goes by what is on the disk
	draining bool // everything is saved
	code     int
	reason   string
	since    time.Time
	record   uint64 // of EndRecord; 0: not written
	finished bool
}

// finish begins the end of the run. The first reason stands, except that a
// quick end overrides a graceful one. A graceful end finishes the open step
// if all of it is under way, saves, and drains; a quick one kills.
func (c *Core) finish(code int, reason string, quick bool) {
	if c.end.on && (!quick || c.end.quick) {
		return
	}
	c.end.on, c.end.quick, c.end.code, c.end.reason = true, quick, code, reason
	c.end.since = c.now
	c.emit(runner.Event{Level: levelOf(code), Name: "run ends", Step: c.decided, Message: reason})
	if code != runner.ExitDone {
		c.evals = nil
	}
	if !quick {
		if !c.underWay() {
			c.stepEvent(step.Event{Kind: step.Refuse})
		}
		return
	}
	for i := range c.workers {
		c.kill(&c.workers[i], runner.CauseKilled, "the run ends: "+reason, "")
	}
}

func levelOf(code int) runner.Level {
	if code == runner.ExitDone || code == runner.ExitStopped {
		return runner.Info
	}
	return runner.Alarm
}

// stopping reports whether no further training is begun.
func (c *Core) stopping() bool { return c.end.on }

// underWay reports whether the open step needs nothing more but answers.
func (c *Core) underWay() bool {
	if c.step.Phase != step.Open {
		return false
	}
	for r := range c.ranks {
		w := c.rank(r)
		if p := c.planOf(c.step.N); p == nil || w.micro < c.micros(p) {
			return false
		}
	}
	return true
}

// busy reports whether a step is on its way: trained, voted on, or applied.
func (c *Core) busy() bool {
	if c.step.Phase != step.Open {
		return c.step.Phase != step.Apart
	}
	return c.underWay()
}

// stopRequested ends the run on request. Where it ends already, because all
// steps are trained, what is left to evaluate is given up; a failure's code and
// reason stand.
func (c *Core) stopRequested(in StopRequested) {
	if c.end.record != 0 || c.end.quick {
		return
	}
	if c.end.on && c.end.code == runner.ExitDone {
		c.end.on = false // there is a new reason
	}
	switch {
	case !in.Quick:
		c.finish(runner.ExitStopped, in.Reason, false)
	case c.end.on && c.end.code != runner.ExitStopped:
		c.finish(c.end.code, c.end.reason, true)
	default:
		c.finish(runner.ExitStopped, in.Reason, true)
		c.end.asked = true
	}
}

// unsaved says what a stop has cost whose last step is not on the disk, and how
// that came. Without a checkpoint to go on from, all work is lost, and it is no
// good stop.
func (c *Core) unsaved(how string) {
	if c.decided == 0 || c.onDisk(c.decided) {
		return
	}
	newest := checkpoint{}
	for _, d := range c.disk {
		if !d.bad && d.Step > newest.Step {
			newest = d
		}
	}
	if newest.Step == 0 {
		c.end.code = runner.ExitFailed
		c.end.reason += fmt.Sprintf("; %s, before there was a checkpoint: the work of %d steps is lost", how, c.decided)
		return
	}
	c.end.reason += fmt.Sprintf("; %s: what was trained after checkpoint %s, to step %d, will be trained again", how, newest.Name, c.decided)
}

// closing notices the natural end of a run, and takes an ending one to its
// last action.
func (c *Core) closing() bool {
	if !c.end.on {
		return c.completed()
	}
	if !c.end.quick && !c.end.draining {
		if !c.settled() {
			return false
		}
		if c.promise() {
			return true
		}
		c.end.draining = true
	}
	if c.retire() {
		return true
	}
	for i := range c.workers {
		if c.workers[i].life.State.Running() {
			return false
		}
	}
	if c.publish.image != 0 {
		return false
	}
	return c.last()
}

// completed ends a run whose last step is decided and saved.
func (c *Core) completed() bool {
	if !c.over(c.decided+1) || c.restore.wanted {
		return false
	}
	if c.decided == 0 {
		c.finish(runner.ExitHopeless, "nothing was trained: no step could be planned", false)
		return true
	}
	if c.figures.total.rows == 0 {
		c.finish(runner.ExitHopeless, "nothing was trained: every row was skipped", false)
		return true
	}
	if im := c.imageOf(c.decided); im != nil && im.state == valid {
		c.finish(runner.ExitDone, "all steps are trained", false)
		return true
	}
	if c.noImage == c.decided {
		c.finish(runner.ExitFailed, "the last step is trained, but no image of it could be made", false)
		return true
	}
	return false
}

// settled reports whether everything that a graceful end waits for is there:
// no step on its way, the state on the disk, evaluations made.
func (c *Core) settled() bool {
	if c.busy() || c.imageDue() || c.imageOpen() || len(c.evals) > 0 || c.publish.image != 0 {
		return false
	}
	for i := range c.images {
		if c.images[i].publish || c.images[i].best {
			return false
		}
	}
	return true
}

// promise has the newest state published, if the disk does not have it yet.
func (c *Core) promise() bool {
	im, _ := c.newest()
	if im == nil || im.step == 0 || im.name != "" || c.publish.failed == im.step || c.onDisk(im.step) || im.publish {
		return false
	}
	im.publish = true
	return true
}

// retire lets every life end: a living one drains, others are killed, and
// what does not run stays so.
func (c *Core) retire() (acted bool) {
	for i := range c.workers {
		w := &c.workers[i]
		switch s := w.life.State; {
		case s == life.Absent || s == life.Backoff:
			acted = c.move(w, life.Drain) || acted
		case c.end.quick || s.Running() && !s.Alive():
			if s.Running() && !w.killed {
				c.kill(w, runner.CauseKilled, "the run ends: "+c.end.reason, "")
				acted = true
			}
		case s == life.Certified || s == life.Ready:
			c.move(w, life.Drain)
			c.send(w, runner.Drain{}, noTurn, 0)
			acted = true
		}
	}
	return acted
}

// last writes the end record, waits until it is durable, and finishes.
func (c *Core) last() bool {
	switch {
	case c.end.asked:
		c.end.asked = false
		c.unsaved("ended at once")
	case c.end.code != runner.ExitStopped || c.end.record != 0 || c.publish.failed == c.decided:
	case c.noImage == c.decided:
		c.unsaved("no image of the last step could be made")
	default:
		c.unsaved("no drafter was left to save")
	}
	if c.publish.failed == c.decided && c.decided > 0 && !c.onDisk(c.decided) && (c.end.code == runner.ExitStopped || c.end.code == runner.ExitDone) {
		c.end.code, c.end.reason = runner.ExitFailed, fmt.Sprintf("%s; but the checkpoint of step %d failed", c.end.reason, c.decided)
	}
	if c.end.record == 0 && !c.journal.failed {
		c.end.record = c.append(runner.EndRecord{Code: c.end.code, Reason: c.end.reason, Step: c.decided})
		c.sync(c.end.record)
	}
	if c.journal.durable < c.end.record && !c.journal.failed {
		return false
	}
	c.end.finished = true
	c.do(Finish{Code: c.end.code, Reason: c.end.reason})
	return false
}
