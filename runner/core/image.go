package core

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// keepImages is how many valid images stay in memory besides those in use.
const keepImages = 2

// imageState is where an image stands.
type imageState uint8

const (
	making  imageState = iota // its memory, or its file, is not there yet
	made                      // there, empty
	writing                   // ordered from the drafters
	valid
)

// image is a drafter's whole state, in memory or in a checkpoint's file.
type image struct {
	id         ImageID
	step       runner.Step
	chain      runner.Chain
	state      imageState
	digest     runner.Digest
	parameters runner.Digest // zero: not known yet
	name       string        // of the checkpoint it was opened from
	commit     uint64        // the record that must be durable before it is published
	writer     runner.Rank
	waits      []bool // by rank: its answer is missing
	publish    bool   // a checkpoint is to be made of it
	best       bool   // it is to take the place of the best one
}

func (c *Core) imageAt(id ImageID) *image {
	for i := range c.images {
		if c.images[i].id == id {
			return &c.images[i]
		}
	}
	return nil
}

// imageOf gives the image of the state at step n of the surviving lineage.
func (c *Core) imageOf(n runner.Step) *image {
	for i := range c.images {
		if im := &c.images[i]; im.step == n && (n != c.decided || im.chain == c.chain) {
			return im
		}
	}
	return nil
}

// imageOpen reports whether the image of the decided step is not whole yet.
func (c *Core) imageOpen() bool {
	im := c.imageOf(c.decided)
	return im != nil && im.state != valid
}

// imageReads reports whether the image of the decided step needs the state to
// stand still: its copy is not taken everywhere. What is left to do then, digests
// and writing, goes on beside the steps that follow.
func (c *Core) imageReads() bool {
	im := c.imageOf(c.decided)
	if im == nil || im.state == valid {
		return false
	}
	if im.state != writing {
		return true
	}
	for r := range c.ranks {
		for i := range c.rank(r).orders {
			if o := &c.rank(r).orders[i]; o.image == im.id && !o.taken && is[runner.Image](o.order) {
				return true
			}
		}
	}
	return false
}

// imageWritten reports whether no image is being written: there is memory for
// one of those at a time.
func (c *Core) imageWritten() bool {
	return !slices.ContainsFunc(c.images, func(im image) bool { return im.state == writing })
}

// imageDue reports whether an image of the decided step must be begun.
func (c *Core) imageDue() bool {
	n := c.decided
	if c.end.on && (c.end.quick || c.end.draining) || c.restore.wanted || c.noImage == n || c.imageOf(n) != nil || !c.writable() {
		return false
	}
	if c.step.Phase != step.Open && c.step.Phase != step.Apart {
		return false
	}
	loss, decode := c.evaluationDue(n)
	switch {
	case loss || decode:
		return true
	case n == 0:
		return false
	case c.end.on:
		return !c.busy()
	case c.step.Phase == step.Apart && c.holders() < len(c.ranks): // for a replacement (rule 5)
		return true
	}
	return every(n, c.cfg.ImageEvery) || c.checkpointDue(n) || c.over(n+1)
}

// writable reports whether a drafter that holds the decided step's state can be
// ordered to write it: one that still maps arenas cannot.
func (c *Core) writable() bool {
	for r := range c.ranks {
		if w := c.rank(r); w.life.State == life.Ready && w.has && w.at == c.decided {
			return true
		}
	}
	return false
}

func every(n, e runner.Step) bool { return e > 0 && n > 0 && n%e == 0 }

// imaging takes images that are due and lets go of those of no use.
func (c *Core) imaging() bool {
	if c.imageDue() && c.imageWritten() {
		c.imageIDs++
		c.images = append(c.images, image{id: c.imageIDs, step: c.decided, chain: c.chain, commit: c.journal.commit, waits: make([]bool, len(c.ranks)), publish: c.checkpointDue(c.decided)})
		c.do(MakeImage{Image: c.imageIDs, Step: c.decided, Bytes: c.imageBytes()})
		c.queueEvaluation(c.imageIDs)
		return true
	}
	for i := range c.images {
		if im := &c.images[i]; im.state == made && (c.step.Phase == step.Open || c.step.Phase == step.Apart) {
			c.write(im)
			return true
		}
	}
	return c.letGo()
}

// imageBytes is the size of an image file, known once a drafter was configured.
func (c *Core) imageBytes() (n uint64) {
	for r := range c.ranks {
		n = max(n, c.rank(r).imageBytes)
	}
	return n
}

// write orders the image from every drafter that holds its state: all copy it,
// one writes, all answer the digest of their parameters.
func (c *Core) write(im *image) {
	first := true
	for r := range c.ranks {
		w := c.rank(r)
		if im.step != c.decided || im.chain != c.chain || w.life.State != life.Ready || !w.has || w.at != im.step {
			continue
		}
		o := runner.Image{At: c.at(im.step), Write: first, NBytes: w.imageBytes}
		if first {
			im.writer, first = runner.Rank(r), false
		}
		im.waits[r] = true
		c.send(w, o, noTurn, im.id)
	}
	if first {
		c.dropImage(im.id)
		return
	}
	im.state = writing
}

func (c *Core) saved(w *worker, o order, r runner.Saved) bool {
	order := o.order.(runner.Image)
	if r.Step != order.Step || r.Written != order.Write {
		return false
	}
	im := c.imageAt(o.image)
	if im == nil || im.state != writing {
		return true // given up meanwhile
	}
	if im.parameters == (runner.Digest{}) {
		im.parameters = r.Parameters
	}
	if im.parameters != r.Parameters {
		c.finish(runner.ExitHopeless, fmt.Sprintf("drafters differ at step %d: %v has parameters %.6x, want %.6x", im.step, w.id, r.Parameters, im.parameters), true)
		return true
	}
	if r.Written {
		im.digest = r.Image
	}
	c.answered(im, w.id.Rank)
	return true
}

// answered notes an answer; the image is valid once none is missing.
func (c *Core) answered(im *image, r runner.Rank) {
	im.waits[r] = false
	if !slices.Contains(im.waits, true) {
		im.state = valid
		c.emit(runner.Event{Level: runner.Info, Name: "image taken", Step: im.step, Lineage: c.lineage})
	}
}

// imageLost gives up the images that a lost drafter was writing; those that it
// only had to confirm become valid without it.
func (c *Core) imageLost(w *worker) {
	for _, im := range slices.Clone(c.images) {
		if w.id.Role != runner.Drafter || im.state != writing || !im.waits[w.id.Rank] {
			continue
		}
		if im.writer == w.id.Rank {
			c.dropImage(im.id)
		} else {
			c.answered(c.imageAt(im.id), w.id.Rank)
		}
	}
}

func (c *Core) imageMade(in ImageMade) {
	im := c.imageAt(in.Image)
	if im == nil || im.state != making {
		return
	}
	if im.state = made; im.name == "" {
		return
	}
	im.state = valid
	if c.restore.image == im.id && c.end.record == 0 { // nothing follows the end's record
		c.restored(im.step, im.chain)
	}
}

func (c *Core) imageFailed(in ImageFailed) {
	im := c.imageAt(in.Image)
	if im == nil || im.state != making {
		return
	}
	e := runner.Event{Level: runner.Alarm, Name: "image failed", Step: im.step, Message: in.Err.Error(), Hint: runner.HintOf(in.Err)}
	if c.restore.image == im.id {
		c.restore.image = 0
		for i := range c.disk {
			c.disk[i].bad = c.disk[i].bad || c.disk[i].Name == im.name
		}
		e.Name = "checkpoint is bad"
		c.figures.degrade(fmt.Sprintf("checkpoint %s is bad: %v", im.name, in.Err))
	} else {
		c.noImage = im.step
		c.figures.degrade(fmt.Sprintf("no image could be taken at step %d: %v", im.step, in.Err))
	}
	c.emit(e)
	n := im.step
	c.dropImage(im.id)
	if c.noImage == n && c.step.Phase == step.Apart && !c.restore.wanted {
		c.missed(n, in.Err)
	}
}

// missed ends a run whose replacement waits for an image that cannot be made:
// it would wait for ever.
func (c *Core) missed(n runner.Step, err error) {
	for r := range c.ranks {
		if w := c.rank(r); w.life.State == life.Ready && c.lacks(w) {
			c.finish(runner.ExitFailed, fmt.Sprintf("%v cannot be given the state of step %d: %v", w.id, n, err), false)
			return
		}
	}
}

// lacks reports whether a worker is a drafter without the decided step's state.
func (c *Core) lacks(w *worker) bool {
	return w.id.Role == runner.Drafter && !(w.has && w.at == c.decided)
}

func (c *Core) dropImage(id ImageID) {
	c.images = slices.DeleteFunc(c.images, func(im image) bool { return im.id == id })
	c.evals = slices.DeleteFunc(c.evals, func(e evaluation) bool { return e.image == id })
	c.do(DropImage{Image: id})
}

// letGo drops valid images beyond the newest, and the plans that no restore
// can need any more.
func (c *Core) letGo() bool {
	kept := 0
	for i := len(c.images) - 1; i >= 0; i-- {
		im := c.images[i]
		if im.state != valid {
			continue
		}
		if kept++; kept <= keepImages || c.inUse(im) {
			if kept == keepImages && im.step < c.decided {
				c.forgetUpTo(im.step)
			}
			continue
		}
		c.dropImage(im.id)
		return true
	}
	return false
}

// forgetUpTo drops what only a restore to before step n could need.
func (c *Core) forgetUpTo(n runner.Step) {
	if len(c.plans) > 0 && c.plans[0].Plan.Step <= n {
		c.plans = slices.DeleteFunc(c.plans, func(p plan) bool { return p.Plan.Step <= n })
		c.figures.forgetUpTo(n)
	}
}

func (c *Core) inUse(im image) bool {
	if c.publish.image == im.id || im.publish || im.best || c.restore.image == im.id {
		return true
	}
	for _, e := range c.evals {
		if e.image == im.id {
			return true
		}
	}
	for i := range c.workers {
		for _, o := range c.workers[i].orders {
			if o.image == im.id {
				return true
			}
		}
	}
	return false
}
