package core

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// publishing is the checkpoint being written, one at a time.
type publishing struct {
	image  ImageID // 0: none
	failed runner.Step
	asked  runner.Step // somebody wants one of this step, or of the next that can be had; 0: nobody
}

// checkpointDue reports whether the state at step n must be published.
func (c *Core) checkpointDue(n runner.Step) bool {
	if n == 0 || c.publish.failed == n || c.onDisk(n) {
		return false
	}
	return every(n, c.cfg.Checkpoint) || c.requested(n) || c.over(n+1) || c.end.on && !c.end.quick
}

// requested reports whether the state at step n answers a request that no
// image on its way to the disk answers.
func (c *Core) requested(n runner.Step) bool {
	if c.publish.asked == 0 || n < c.publish.asked {
		return false
	}
	for i := range c.images {
		if im := &c.images[i]; im.publish && im.step >= c.publish.asked && im.step != n {
			return false
		}
	}
	return true
}

func (c *Core) onDisk(n runner.Step) bool {
	for _, d := range c.disk {
		if d.Step == n && !d.bad {
			return true
		}
	}
	return false
}

// checkpointing publishes images that were promised a checkpoint, once the
// journal is durable through their commit (rule 7).
func (c *Core) checkpointing() bool {
	if c.publish.image != 0 || c.end.on && c.end.quick {
		return false
	}
	for i := range c.images {
		im := &c.images[i]
		if im.state != valid || !im.publish && !im.best {
			continue
		}
		if c.journal.durable < im.commit && !c.cfg.without.durableFirst {
			c.sync(im.commit)
			continue
		}
		c.publish.image = im.id
		c.do(Publish{Image: im.id, Step: im.step, Digest: im.digest, Chain: im.chain, Best: im.best})
		return true
	}
	return false
}

func (c *Core) published(in Published) {
	im := c.imageAt(in.Image)
	if im == nil || c.publish.image != in.Image {
		return
	}
	c.publish.image = 0
	if im.step >= c.publish.asked {
		c.publish.asked = 0
	}
	best := im.best
	im.publish, im.best = false, false
	if in.Err != nil {
		c.publish.failed = im.step
		c.figures.degrade(fmt.Sprintf("checkpoint of step %d failed: %v", im.step, in.Err))
		c.emit(runner.Event{Level: runner.Alarm, Name: "checkpoint failed", Step: im.step, Message: in.Err.Error(), Hint: runner.HintOf(in.Err)})
		return
	}
	c.figures.checkpointed()
	rec := runner.CheckpointRecord{Step: im.step, Name: in.Name, Image: im.digest, Chain: im.chain, Best: best}
	c.append(rec)
	c.sync(c.journal.number)
	c.disk = slices.DeleteFunc(c.disk, func(d checkpoint) bool { return d.Name == in.Name })
	c.disk = append(c.disk, checkpoint{CheckpointRecord: rec})
	c.emit(runner.Event{Level: runner.Info, Name: "checkpoint published", Step: im.step, Message: in.Name})
	c.thin()
}

// thin removes checkpoints that are neither among the last ones nor the best;
// bad ones are neither.
func (c *Core) thin() {
	slices.SortStableFunc(c.disk, func(a, b checkpoint) int { return int(a.Step) - int(b.Step) })
	best, good := -1, 0
	for i, d := range c.disk {
		if d.bad {
			continue
		}
		if good++; d.Best && (best < 0 || d.Step == c.figures.bestStep) {
			best = i
		}
	}
	keep, after := max(1, c.cfg.KeepLast), good
	c.disk = c.keepDisk(func(i int) bool {
		if c.disk[i].bad {
			return false
		}
		after--
		return i == best || after < keep
	})
}

func (c *Core) keepDisk(keep func(int) bool) (kept []checkpoint) {
	for i, d := range c.disk {
		if keep(i) {
			kept = append(kept, d)
		} else {
			c.do(Unpublish{Name: d.Name})
		}
	}
	return kept
}

// takeCheckpoints takes over the checkpoints of an earlier life. A stray one is
// bad from the start, so the next publication removes it.
func (c *Core) takeCheckpoints(r *Resume) {
	for _, rec := range slices.Concat(r.Checkpoints, r.Adopted) {
		c.disk = slices.DeleteFunc(c.disk, func(d checkpoint) bool { return d.Name == rec.Name })
		c.disk = append(c.disk, checkpoint{CheckpointRecord: rec})
	}
	for _, name := range r.Strays {
		c.disk = append(c.disk, checkpoint{CheckpointRecord: runner.CheckpointRecord{Name: name}, bad: true})
	}
}

// recordAdopted appends the records that a kill kept from the journal.
func (c *Core) recordAdopted() {
	if r := c.cfg.Resume; r != nil {
		for _, rec := range r.Adopted {
			c.append(rec)
		}
	}
}
