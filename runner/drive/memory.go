package drive

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// slotted is an arena and how it is cut.
type slotted struct {
	Region
	slots     uint32
	slotBytes uint64
}

// makeArena allocates in a goroutine: touching the memory takes its time.
func (l *Loop) makeArena(a core.MakeArena) {
	l.goEdge(func() {
		r, err := l.c.Memory.MakeArena(a.Arena, a.Worker, a.Slots, a.SlotBytes)
		l.deliver(r, err, func() {
			if err != nil {
				l.handle(core.ArenaFailed{Arena: a.Arena, Err: err})
				return
			}
			l.arenas[a.Arena] = &slotted{r, a.Slots, a.SlotBytes}
			l.handle(core.ArenaMade{Arena: a.Arena, Kind: r.Kind()})
		})
	})
}

func (l *Loop) makeImage(a core.MakeImage) {
	l.making[a.Image] = true
	l.goEdge(func() {
		r, err := l.c.Memory.MakeImage(a.Step, a.Bytes)
		l.deliver(r, err, func() { l.imageMade(a.Image, r, err) })
	})
}

func (l *Loop) openImage(a core.OpenImage) {
	l.making[a.Image] = true
	l.disk.post(func() {
		r, err := l.c.Store.Open(a.Name, a.Digest)
		l.deliver(r, err, func() { l.imageMade(a.Image, r, err) })
	})
}

func (l *Loop) imageMade(id core.ImageID, r Region, err error) {
	wanted := l.making[id]
	delete(l.making, id)
	if err != nil {
		l.handle(core.ImageFailed{Image: id, Err: err})
		return
	}
	if !wanted {
		l.closeRegion("dropped image", r)
		return
	}
	l.images[id] = r
	l.handle(core.ImageMade{Image: id})
}

// deliver gives a region to the loop, or closes it where the run is over.
func (l *Loop) deliver(r Region, err error, then func()) {
	ok := l.inbox.post(func() {
		if l.outcome != nil {
			if err == nil {
				l.closeRegion("late", r)
			}
			return
		}
		then()
	})
	if !ok && err == nil {
		l.closeRegion("late", r)
	}
}

// dropImage closes an image once the disk is done with it: the disk's queue
// holds the closing, so that what is being published stays open.
func (l *Loop) dropImage(a core.DropImage) {
	r := l.images[a.Image]
	delete(l.images, a.Image)
	delete(l.making, a.Image)
	if r != nil {
		l.disk.post(func() { l.closeRegion("image", r) })
	}
}

func (l *Loop) publish(a core.Publish) {
	p := Publication{Region: l.images[a.Image], Step: a.Step, Lineage: l.core.View().Lineage, Digest: a.Digest, Chain: a.Chain, Best: a.Best}
	l.disk.post(func() {
		var name string
		var err error
		if p.Region == nil {
			err = runner.Errorf(runner.Internal, "publish step %d: image %d: there is none", a.Step, a.Image)
		} else {
			name, err = l.c.Store.Publish(p)
		}
		l.inbox.post(func() {
			if err != nil {
				l.degrade["checkpoint"] = err.Error()
			} else {
				delete(l.degrade, "checkpoint")
			}
			l.handle(core.Published{Image: a.Image, Name: name, Err: err})
		})
	})
}

func (l *Loop) unpublish(a core.Unpublish) {
	l.disk.post(func() {
		if err := l.c.Store.Remove(a.Name); err != nil {
			l.inbox.post(func() {
				l.degrade["checkpoint removal"] = err.Error()
				l.c.Observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "checkpoint not removed", Message: err.Error()})
			})
		}
	})
}

// diskWorker does the disk's work one thing at a time; it ends at the nil that
// end posts, when all before it is done.
func (l *Loop) diskWorker() {
	for {
		<-l.disk.ready
		for _, v := range l.disk.take() {
			f, ok := v.(func())
			if !ok {
				return
			}
			f()
		}
	}
}

func (l *Loop) closeRegion(what string, r Region) {
	if err := r.Close(); err != nil {
		l.c.Observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "memory not closed", Message: what + ": " + err.Error()})
	}
}
