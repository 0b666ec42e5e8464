package core

import (
	"maps"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// clone gives a world that goes its own way from here.
func (w *world) clone() *world {
	n := *w
	n.core = w.core.clone()
	n.procs = slices.Clone(w.procs)
	for i := range n.procs {
		n.procs[i].main, n.procs[i].fast = slices.Clone(n.procs[i].main), slices.Clone(n.procs[i].fast)
	}
	n.memory, n.held = maps.Clone(w.memory), maps.Clone(w.held)
	n.touches, n.pictures, n.disk = slices.Clone(w.touches), slices.Clone(w.pictures), slices.Clone(w.disk)
	n.journal, n.shares, n.applied = slices.Clip(w.journal), slices.Clone(w.shares), slices.Clone(w.applied)
	n.judging = slices.Clone(w.judging)
	n.trace, n.acts, n.events = slices.Clip(w.trace), nil, nil
	return &n
}

func (c *Core) clone() *Core {
	n := *c
	n.idle, n.desk = outlook{}, desk{} // they name the other's workers
	n.workers = slices.Clone(c.workers)
	for i := range n.workers {
		n.workers[i].orders, n.workers[i].maps = slices.Clone(n.workers[i].orders), slices.Clone(n.workers[i].maps)
	}
	n.ledger = c.ledger.Clone()
	p := *c.planner.(*simple)
	n.planner = &p
	n.plans, n.disk, n.images, n.evals = slices.Clone(c.plans), slices.Clone(c.disk), slices.Clone(c.images), slices.Clone(c.evals)
	for i := range n.plans {
		n.plans[i].spots = slices.Clone(n.plans[i].spots)
	}
	for i := range n.images {
		n.images[i].waits = slices.Clone(n.images[i].waits)
	}
	for i := range n.evals {
		n.evals[i].todo, n.evals[i].results = slices.Clone(n.evals[i].todo), slices.Clone(n.evals[i].results)
	}
	f := &n.figures
	f.steps, f.failures, f.degraded = slices.Clone(f.steps), slices.Clone(f.failures), slices.Clone(f.degraded)
	f.losses.sources = slices.Clone(f.losses.sources)
	f.arenas, f.scores = slices.Clone(f.arenas), slices.Clone(f.scores)
	return &n
}

// key is a canonical form of a world: two worlds of one key behave alike.
// Numbers that only ever grow are given relative to one another, so that what
// happened in another order meets again.
type key struct {
	b []byte
	w *world
}

func (w *world) key() string {
	k := key{w: w}
	c := w.core
	k.n(w.crashes, w.outages, w.lives, w.stops, len(w.syncing), k.image(w.sending), len(w.touches), len(w.disk))
	for i := range c.workers {
		k.worker(&c.workers[i], &w.procs[i])
	}
	for _, n := range w.syncing {
		k.n(len(w.journal) - w.base - n)
	}
	k.verdicts()
	k.slots()
	k.journal()
	k.drafters()
	k.pictures()
	e := c.end
	k.n(boolInt(e.on, e.quick, e.draining), e.code, boolInt(e.record != 0), boolInt(w.finished != nil))
	return string(k.b)
}

func (k *key) n(vs ...int) {
	for _, v := range vs {
		if v >= -100 && v < 100 {
			k.b = append(k.b, byte(v+100))
		} else {
			k.b = append(k.b, 255, byte(v), byte(v>>8), byte(v>>16))
		}
	}
}

func boolInt(bs ...bool) (n int) {
	for i, b := range bs {
		if b {
			n |= 1 << i
		}
	}
	return n
}

// image gives an image's place among those at hand.
func (k *key) image(id ImageID) int {
	if id == 0 {
		return -2
	}
	return slices.IndexFunc(k.w.core.images, func(im image) bool { return im.id == id })
}

func (k *key) worker(x *worker, p *proc) {
	k.n(int(x.life.State), int(x.life.Generation), boolInt(x.killed, x.has, x.sent, x.plain, x.evaluated, x.made), int(x.at), x.micro, x.blame, x.refused, len(x.orders))
	for _, o := range x.orders {
		k.order(o.order, o.image)
		k.n(int(o.turn), boolInt(o.void, o.taken))
	}
	if c := k.w.core; c.pairs() && slices.ContainsFunc(c.ranks, func(r int) bool { return c.partner(&c.workers[r]) != nil }) {
		k.pace(x)
	}
	for _, m := range x.maps {
		k.n(int(m.arena), boolInt(m.done))
	}
	for i := range k.w.core.workers {
		k.n(boolInt(k.w.core.workers[i].granted < x.granted))
	}
	for _, b := range [4]buffer{x.buffers[0], x.buffers[1], p.buffers[0], p.buffers[1]} {
		k.n(int(b.row), boolInt(b.pulling, b.trained))
	}
	k.n(boolInt(p.up, p.dead, p.warming, p.certified, p.plain), int(p.life.Generation), int(p.comm), int(p.reduced), int(p.at), len(p.value), len(p.batch), len(p.main), len(p.fast))
	for _, o := range p.main {
		k.order(o.order, o.image)
	}
	for _, o := range p.fast {
		k.order(o.order, o.image)
		k.n(len(o.value))
	}
}

// pace is what rows of later steps are begun by. Time moves by seconds or not at
// all.
func (k *key) pace(x *worker) {
	k.n(int(x.lately.Takes(8)), int(x.lately.Takes(1)))
	for _, o := range x.orders {
		k.n(int(k.w.core.now.Sub(o.sent) / time.Second))
	}
}

func (k *key) order(o runner.Order, id ImageID) {
	k.b = append(k.b, runner.OrderType(o)[0], runner.OrderType(o)[1])
	at := func(a runner.At) { k.n(int(a.Lineage), int(a.Communicator), int(a.Step)) }
	switch o := o.(type) {
	case runner.MapArena:
		k.n(int(o.Arena), boolInt(o.Write))
	case runner.CreateArena:
		k.n(int(o.Arena))
	case runner.Produce:
		k.n(int(o.Row), int(o.Slot.Arena), int(o.Slot.Index), k.version(o.Slot, o.Version))
	case runner.Pull:
		k.n(int(o.Row), int(o.Handle.Arena), int(o.Handle.Slot), k.version(slotOf(o.Handle), o.Handle.Version))
	case runner.Join:
		at(o.At)
	case runner.Train:
		at(o.At)
		k.n(int(o.Micro), int(o.Row))
	case runner.Commit:
		at(o.At)
	case runner.Abort:
		at(o.At)
	case runner.Image:
		at(o.At)
		k.n(boolInt(o.Write), k.image(id))
	case runner.Load:
		at(o.At)
		k.n(k.image(id))
	case runner.Evaluate:
		k.n(int(o.Step), int(o.What[0]), int(o.First), int(o.Count), int(o.NBytes), k.image(id))
	}
}

// version gives a version relative to the slot's present one.
func (k *key) version(at runner.Slot, v runner.Version) int {
	for _, a := range k.w.core.ledger.Arenas {
		if a.Arena == at.Arena {
			return int(v) - int(a.Slots[at.Index].Version)
		}
	}
	return 99
}

func (k *key) slots() {
	for _, a := range k.w.core.ledger.Arenas {
		for j, s := range a.Slots {
			at := runner.Slot{Arena: a.Arena, Index: uint32(j)}
			m := k.w.memory[at]
			k.n(boolInt(k.w.held[a.Arena]), int(s.State), int(s.Row), int(s.Holder.Worker.Rank), int(s.Holder.Generation), boolInt(s.Reading, m.version == s.Version), int(m.row))
		}
	}
	t := slices.Clone(k.w.touches)
	slices.SortFunc(t, func(a, b touch) int { return slices.Compare(a.numbers(), b.numbers()) })
	for _, x := range t {
		k.n(x.numbers()...)
	}
}

func (t touch) numbers() []int {
	return []int{int(t.life.Worker.Role[0]), int(t.life.Worker.Rank), int(t.life.Generation), int(t.at.Arena), int(t.at.Index)}
}

// journal gives what a resume would read of the durable part, and the rest
// record by record.
func (k *key) journal() {
	w, j := k.w, &k.w.core.journal
	last := int(j.number)
	k.n(last-int(j.asked), last-int(j.durable), max(0, int(j.barrier)-int(j.durable)), max(0, int(j.commit)-int(j.durable)), boolInt(j.failed))
	durable := w.journal[:w.base+w.durable]
	r := resumeOf(durable, nil)
	k.n(int(r.Lineage), int(r.Committed), len(r.Arranged), len(r.Plans), len(r.Evaluations))
	for _, p := range r.Plans {
		k.b = append(k.b, p.Chain[:4]...)
	}
	for _, rec := range w.journal[len(durable):] {
		k.b = append(k.b, runner.RecordType(rec)[:3]...)
		switch rec := rec.(type) {
		case runner.PlanRecord:
			k.b = append(k.b, rec.Chain[:4]...)
		case runner.CommitRecord:
			k.n(int(rec.Step), int(rec.Lineage))
		case runner.RestoreRecord:
			k.n(int(rec.Step), int(rec.Lineage))
		}
	}
}

func (k *key) drafters() {
	c := k.w.core
	k.n(int(c.step.Phase), int(c.step.N), int(c.lineage), int(c.communicator), int(c.decided), int(c.planned), boolInt(c.asked, c.exhausted, c.assign.out, c.restore.wanted, c.noImage == c.decided), int(c.assign.row), c.figures.notFinite, len(c.figures.scores))
	for _, r := range c.step.Ranks {
		k.n(boolInt(r.Done, r.Gone))
	}
	for _, p := range c.plans {
		k.n(int(p.Plan.Step), max(0, int(p.number)-int(c.journal.durable)))
		k.b = append(k.b, p.Chain[:4]...)
	}
	for _, s := range k.w.shares {
		if s.comm == c.communicator {
			k.n(int(s.rank))
		}
	}
	for _, a := range k.w.applied {
		k.n(len(a))
	}
	for _, e := range c.evals {
		k.n(int(e.step), k.image(e.image), int(e.target.Generation), int(e.target.Worker.Rank), len(e.todo), boolInt(e.loaded))
		if len(e.todo) > 0 {
			k.n(int(e.todo[0].next))
		}
	}
}

func (k *key) pictures() {
	c := k.w.core
	for _, im := range c.images {
		m := k.w.pictureOf(im.id)
		k.n(int(im.step), int(im.state), boolInt(im.publish, im.best, m != nil && m.written, im.name != ""), int(im.writer), boolInt(im.waits...), max(0, int(im.commit)-int(c.journal.durable)))
	}
	k.n(k.image(c.publish.image), int(c.publish.failed), k.image(c.restore.image))
	for _, d := range k.w.disk {
		k.n(int(d.step), len(d.value))
	}
	for _, d := range c.disk {
		k.n(int(d.Step), boolInt(d.bad))
	}
}
