package core

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/rows"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// restoring is how far a restore has come.
type restoring struct {
	wanted bool    // nobody holds the state of the decided step
	image  ImageID // being opened; 0: none
}

// checkpoint is an image on the disk.
type checkpoint struct {
	runner.CheckpointRecord
	bad bool // it could not be opened, or a restore has undone its step
}

// recovering restores when no drafter and no image holds the state of the
// decided step, and none is applying it (rules 5 and 6).
func (c *Core) recovering() bool {
	if c.end.on && c.end.quick || c.end.record != 0 || c.restore.image != 0 {
		return false
	}
	if !c.restore.wanted {
		im := c.imageOf(c.decided)
		if c.decided == 0 || c.step.Phase != step.Apart || c.end.on || c.holders() > 0 || im != nil && im.state == valid {
			return false
		}
		c.restore.wanted = true
	}
	return c.restoreFrom(c.newest())
}

// holders counts the drafters that hold the state of the decided step.
func (c *Core) holders() (n int) {
	for r := range c.ranks {
		if w := c.rank(r); w.life.State.Alive() && w.has && w.at == c.decided {
			n++
		}
	}
	return n
}

// newest gives the newest image to restore from: one at hand, or, newer than
// that, a checkpoint. Both nil: the state before training.
func (c *Core) newest() (im *image, cp *checkpoint) {
	for i := range c.images {
		if m := &c.images[i]; m.state == valid && c.explains(m.step, m.chain) && (im == nil || m.step >= im.step) {
			im = m
		}
	}
	for i := range c.disk {
		if d := &c.disk[i]; !d.bad && c.explains(d.Step, d.Chain) && (cp == nil || d.Step >= cp.Step) {
			cp = d
		}
	}
	if im != nil && (cp == nil || cp.Step <= im.step) {
		return im, nil
	}
	return nil, cp
}

// explains reports whether the journal's plans lead to, or on from, a state
// at step n with this chain.
func (c *Core) explains(n runner.Step, chain runner.Chain) bool {
	if n > c.decided {
		return false
	}
	if p := c.planOf(n); p != nil {
		return p.Chain == chain
	}
	if p := c.planOf(n + 1); p != nil {
		return rows.Chain(chain, rows.Step{Plan: p.Plan, Rows: p.Rows}) == p.Chain
	}
	return n == c.decided && (n == c.planned || c.planned == 0)
}

// restoreFrom begins or finishes a restore; a checkpoint is opened first.
func (c *Core) restoreFrom(im *image, cp *checkpoint) bool {
	switch {
	case cp != nil:
		c.imageIDs++
		c.restore.image = c.imageIDs
		c.images = append(c.images, image{id: c.imageIDs, step: cp.Step, chain: cp.Chain, digest: cp.Image, name: cp.Name, state: making})
		c.do(OpenImage{Image: c.imageIDs, Step: cp.Step, Name: cp.Name, Digest: cp.Image})
	case im != nil:
		c.restored(im.step, im.chain)
	case len(c.plans) > 0 && c.plans[0].Plan.Step != 1:
		c.restore.wanted = false
		c.finish(runner.ExitFailed, "restore: no image is left that this life knows the plans after", true)
	default:
		c.restored(0, runner.Chain{})
	}
	return true
}

// restored goes on from step n in a new lineage; the record is durable before
// the first order.
func (c *Core) restored(n runner.Step, chain runner.Chain) {
	lost := c.decided - n
	c.restore = restoring{}
	c.lineage++
	c.decided, c.chain = n, chain
	c.journal.barrier = c.append(runner.RestoreRecord{Step: n, Lineage: c.lineage, Chain: chain})
	c.journal.commit = c.journal.barrier
	c.sync(c.journal.barrier)
	if c.cfg.without.reusedPlans {
		c.forgetPlans(n)
	}
	c.figures.rewind(n)
	c.figures.restored = Restored{Lineage: c.lineage, Step: n, Undone: lost}
	for i := range c.disk { // of an older lineage: they are published anew
		c.disk[i].bad = c.disk[i].bad || c.disk[i].Step > n
	}
	c.evals = slices.DeleteFunc(c.evals, func(e evaluation) bool { return e.step > n })
	c.noImage = none
	c.emit(runner.Event{Level: runner.Warn, Name: "restored", Step: n, Lineage: c.lineage, Message: fmt.Sprintf("%d decided steps are trained again", lost)})
}

// load gives the state of the decided step to drafters that do not hold it.
func (c *Core) load() (acted bool) {
	if c.step.Phase != step.Apart || c.restore.wanted || c.held() || c.stopping() {
		return false
	}
	im := c.imageOf(c.decided)
	if im == nil || im.state != valid {
		return false
	}
	for r := range c.ranks {
		w := c.rank(r)
		if w.life.State == life.Ready && !(w.has && w.at == c.decided) && !w.waits(stepOrder) {
			c.send(w, runner.Load{At: c.at(c.decided), NBytes: w.imageBytes}, noTurn, im.id)
			acted = true
		}
	}
	return acted
}

// loaded checks that the drafter holds what the image was made of.
func (c *Core) loaded(w *worker, o order, r runner.Loaded) bool {
	order := o.order.(runner.Load)
	if order.Lineage != c.lineage || order.Step != c.decided {
		return true // overtaken by a restore: it is loaded again
	}
	im := c.imageAt(o.image)
	if r.Step != order.Step || im == nil || r.Chain != im.chain {
		return false
	}
	if im.parameters == (runner.Digest{}) {
		im.parameters = r.Parameters // a checkpoint's: the first to load says it
	}
	if im.parameters != r.Parameters {
		c.finish(runner.ExitHopeless, fmt.Sprintf("%v has parameters %.6x after loading step %d, want %.6x", w.id, r.Parameters, r.Step, im.parameters), true)
		return true
	}
	w.has, w.at = true, order.Step
	return true
}
