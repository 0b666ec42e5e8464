package core

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// The workers of the model: what they do with orders, by proto/lane.md.

// sent puts an order on a worker's lane and checks what must hold of it.
func (w *world) sent(a Send) {
	p := w.proc(a.Life)
	if p == nil {
		w.fault("an order to %v, which is not there", a.Life)
		return
	}
	if !p.certified {
		w.fault("I1: %s reaches %v without a certificate", runner.OrderType(a.Order), a.Life)
	}
	k := ask{seq: a.Seq, order: a.Order, image: a.Image}
	switch o := a.Order.(type) {
	case runner.MapArena:
		if !w.held[o.Arena] {
			w.fault("%v is to map arena %d, whose descriptor did not come", a.Life, o.Arena)
		}
		w.later(Replied{Life: a.Life, Seq: a.Seq, Reply: runner.Mapped{Arena: o.Arena}})
		return
	case runner.CreateArena:
		if w.held[o.Arena] {
			w.fault("%v is to create arena %d, which is there", a.Life, o.Arena)
		}
	case runner.Produce:
		w.leased(a.Life, o.Slot, o.Version)
	case runner.Pull:
		w.arrives(p, o)
		w.touches = append(w.touches, touch{a.Life, slotOf(o.Handle)})
	}
	if p.dead {
		return
	}
	if is[runner.Pull](a.Order) || is[runner.Abort](a.Order) {
		p.fast = append(p.fast, k)
	} else {
		p.main = append(p.main, k)
	}
	w.turnsKept()
	w.barrierKept(a.Order)
}

// barrierKept checks rules 6 and 9: a restore, and a skip with the plans that
// follow it, are durable before anything is ordered of the drafters again.
func (w *world) barrierKept(o runner.Order) {
	if !stepOrder(o) || is[runner.Abort](o) || is[runner.Commit](o) {
		return
	}
	for _, rec := range w.journal[w.base+w.durable:] {
		switch rec.(type) {
		case runner.RestoreRecord, runner.SkipRecord:
			w.fault("rule 6 or 9: %s is ordered before %T is durable", runner.OrderType(o), rec)
		}
	}
}

// turnsKept checks that no more compute orders are out than the device has
// turns, and that a micro-step that reduces has it for itself and its peers.
func (w *world) turnsKept() {
	for i := range w.procs {
		w.turnsOf(w.procs[i].device)
	}
}

func (w *world) turnsOf(device string) {
	n, sums, turns := 0, 0, w.core.cfg.Devices[device]
	for i := range w.procs {
		if w.procs[i].device != device {
			continue
		}
		for _, k := range w.procs[i].main {
			switch o := k.order.(type) {
			case runner.Produce, runner.Commit, runner.Evaluate:
				n++
			case runner.Train:
				if n++; o.Last && w.setup.drafters > 1 {
					sums++
				}
			}
		}
	}
	if sums == 0 && n > turns || sums > 0 && n != sums {
		w.fault("turns: %d compute orders are out, %d of them sums, on %s of %d turns", n, sums, device, turns)
	}
}

func slotOf(h runner.Handle) runner.Slot { return runner.Slot{Arena: h.Arena, Index: h.Slot} }

// leased checks I4 at the moment a slot is given out for writing: nobody else
// may still touch it, and the version is higher than any before.
func (w *world) leased(l runner.Life, at runner.Slot, v runner.Version) {
	for _, t := range w.touches {
		if t.at == at {
			w.fault("I4: %v is written by %v while %v may still touch it", at, l, t.life)
		}
	}
	if m := w.memory[at]; v <= m.version {
		w.fault("I4: %v is written under version %d after %d", at, v, m.version)
	}
	w.memory[at] = content{version: v} // torn from now on
	w.touches = append(w.touches, touch{l, at})
}

// arrives gives a pull its buffer, by the rule of proto/lane.md.
func (w *world) arrives(p *proc, o runner.Pull) {
	b := p.buffers
	if b[0].pulling && b[1].pulling {
		w.fault("a third pull reaches %v", p.life)
		return
	}
	if b[0].row == o.Row || b[1].row == o.Row {
		w.fault("a pull of row %d, which %v has", o.Row, p.life)
		return
	}
	p.buffers[victim(b)] = buffer{row: o.Row, pulling: true}
}

func (w *world) reply(p *proc, k ask, r ...runner.Reply) {
	var in []Input
	for _, x := range r {
		in = append(in, Replied{Life: p.life, Seq: k.seq, Reply: x})
	}
	w.give(in...)
}

// can reports whether the order at the head of a worker's queue can be worked off.
func (w *world) can(i int) bool {
	p := &w.procs[i]
	if !p.alive() || len(p.main) == 0 {
		return false
	}
	switch o := p.main[0].order.(type) {
	case runner.Join:
		return w.all(func(q *proc) bool {
			h, ok := q.head().(runner.Join)
			return q.alive() && (q.comm == o.Communicator || ok && h.Communicator == o.Communicator)
		})
	case runner.Train:
		return !o.Last || w.summed(o.Communicator)
	}
	return true
}

func (p *proc) head() runner.Order {
	if len(p.main) == 0 {
		return nil
	}
	return p.main[0].order
}

// all asks something of every drafter's process.
func (w *world) all(f func(*proc) bool) bool {
	for _, i := range w.core.ranks {
		if !f(&w.procs[i]) {
			return false
		}
	}
	return true
}

// summed reports whether every rank has contributed to the communicator's
// present sum: it is in it, finished it, or died in it.
func (w *world) summed(c runner.Communicator) bool {
	for r, i := range w.core.ranks {
		p := &w.procs[i]
		o, ok := p.head().(runner.Train)
		in := p.alive() && (ok && o.Last && o.Communicator == c || p.reduced == c)
		if !in && !slices.Contains(w.shares, share{c, runner.Rank(r)}) {
			return false
		}
	}
	return true
}

// work lets a worker work off the order at the head of its queue.
func (w *world) work(i int) {
	p := &w.procs[i]
	k := p.main[0]
	p.main = p.main[1:]
	switch o := k.order.(type) {
	case runner.CreateArena:
		w.reply(p, k, runner.Created{Arena: o.Arena})
	case runner.Produce:
		w.memory[o.Slot] = content{o.Row, o.Version}
		w.untouch(p.life, o.Slot)
		w.reply(p, k, runner.Produced{Row: o.Row, Handle: runner.Handle{Arena: o.Slot.Arena, Slot: o.Slot.Index, Version: o.Version}})
	case runner.Join:
		if p.at != o.Step || p.comm >= o.Communicator {
			w.fault("I5: %v at step %d in communicator %d joins %+v", p.life, p.at, p.comm, o)
		}
		p.comm, p.batch, p.reduced = o.Communicator, "", 0
		w.reply(p, k, runner.Joined{Communicator: o.Communicator})
	case runner.Train:
		w.train(p, k, o)
	case runner.Commit:
		w.commit(p, k, o)
	case runner.Image:
		w.image(p, k, o)
	case runner.Load:
		m := w.pictureOf(k.image)
		if m == nil || !m.written || m.step != o.Step {
			w.fault("%v loads image %d of step %d, which is not one", p.life, k.image, o.Step)
			return
		}
		p.at, p.value, p.chain = m.step, m.value, m.chain
		w.reply(p, k, runner.Loaded{Step: m.step, Chain: m.chain, Parameters: digest(m.value)})
	case runner.Evaluate:
		w.scores(p, k, o)
	case runner.Drain:
		w.inputs = append(w.inputs, Replied{Life: p.life, Seq: k.seq, Reply: runner.Drained{}})
		l := p.life
		*p = proc{}
		w.give(Exited{Life: l})
	}
}

func (w *world) untouch(l runner.Life, at runner.Slot) {
	w.touches = slices.DeleteFunc(w.touches, func(t touch) bool { return t == touch{l, at} })
}

func (w *world) train(p *proc, k ask, o runner.Train) {
	if p.comm != o.Communicator || p.at+1 != o.Step || o.Lineage != w.core.lineage {
		w.fault("stale: %v at step %d in communicator %d trains %+v", p.life, p.at, p.comm, o)
		return
	}
	held := o.Row == 0
	for i := range p.buffers {
		if b := &p.buffers[i]; o.Row != 0 && b.row == o.Row && !b.pulling {
			b.trained, held = true, true
		}
	}
	if !held {
		w.fault("%v trains row %d, its buffers hold %+v", p.life, o.Row, p.buffers)
		return
	}
	p.batch += fmt.Sprint(o.Row, " ")
	t := runner.Trained{Step: o.Step, Micro: o.Micro, Row: o.Row}
	if !o.Last {
		w.reply(p, k, t)
		return
	}
	p.reduced = o.Communicator
	plan := w.core.planOf(o.Step).Plan
	if want := fmt.Sprintln(plan.Rows[p.life.Worker.Rank]); "["+p.batch[:len(p.batch)-1]+"]\n" != want {
		w.fault("%v sums rows %s, want %s", p.life, p.batch, want)
	}
	p.batch = w.batch(w.core.planOf(o.Step)) // the sum over all ranks
	v := runner.Voted{At: o.At, Norm: 7, Finite: true}
	for _, row := range plan.Rows[p.life.Worker.Rank] {
		if row != 0 {
			l := runner.RowLoss{Row: row, Numerator: float64(row), Denominator: 1}
			if slices.Contains(w.setup.poison, w.core.planOf(o.Step).row(row).Pieces[0].Sample) {
				l.Numerator, v.Finite = nan(), false
			}
			v.Rows = append(v.Rows, l)
		}
	}
	if w.setup.fragile {
		w.apply(p, o.Step, w.core.planOf(o.Step).Chain)
	}
	w.reply(p, k, t, v)
}

// batch names all that a step's gradient is made of: samples, place by place.
func (w *world) batch(p *plan) (s string) {
	for _, micros := range p.Plan.Rows {
		for _, row := range micros {
			if row == 0 {
				s += "-,"
			} else {
				s += fmt.Sprint(p.row(row).Pieces[0].Sample, ",")
			}
		}
	}
	return s + ";"
}

func nan() float64 { z := 0.0; return z / z }

func (w *world) commit(p *proc, k ask, o runner.Commit) {
	if p.at+1 != o.Step && p.at != o.Step || p.comm != o.Communicator || p.reduced != o.Communicator {
		w.fault("stale: %v at step %d in communicator %d commits %+v", p.life, p.at, p.comm, o)
		return
	}
	if p.at+1 == o.Step {
		w.apply(p, o.Step, o.Chain)
	}
	for i := range p.buffers {
		if slices.Contains(w.core.planOf(o.Step).Plan.Rows[p.life.Worker.Rank], p.buffers[i].row) {
			p.buffers[i] = buffer{}
		}
	}
	p.batch, p.reduced = "", 0
	w.reply(p, k, runner.Committed{Step: o.Step})
}

// apply changes parameters, and checks that a step is only ever applied with
// the batch that it was first applied with (I7), which a skip alone may change.
func (w *world) apply(p *proc, n runner.Step, chain runner.Chain) {
	switch w.applied[n] {
	case "":
		w.applied[n] = p.batch
	case p.batch:
	default:
		w.fault("I7: step %d was applied with %s and is now with %s", n, w.applied[n], p.batch)
	}
	p.at, p.value, p.chain = n, p.value+p.batch, chain
}

func (w *world) image(p *proc, k ask, o runner.Image) {
	if p.at != o.Step {
		w.fault("stale: %v at step %d writes an image of step %d", p.life, p.at, o.Step)
		return
	}
	k.value, k.chain = p.value, p.chain
	p.fast = append(slices.Clone(p.fast), k) // the rest goes on beside
	w.reply(p, k, runner.Taken{Step: o.Step})
}

// save ends an image whose copy was taken, whatever the worker has come to since.
func (w *world) save(p *proc, k ask, o runner.Image) {
	r := runner.Saved{Step: o.Step, Written: o.Write, Parameters: digest(k.value)}
	if o.Write {
		r.Image = digest("image" + k.value)
		if m := w.pictureOf(k.image); m != nil { // else it was given up, and its memory is the worker's alone
			m.value, m.chain, m.written = k.value, k.chain, true
		}
	}
	w.reply(p, k, r)
}

func (w *world) scores(p *proc, k ask, o runner.Evaluate) {
	if o.What == "decode" && !p.plain {
		w.fault("%v decodes before plain decoding", p.life)
	}
	p.plain = p.plain || o.What == "plain"
	r := runner.Evaluated{Step: o.Step, What: o.What, Lossless: true, Tokens: 8 * uint64(o.Count), Forwards: 2 * uint64(o.Count)}
	if o.What == "loss" {
		r.Tokens, r.Forwards = 0, 0
		r.Numerator, r.Denominator = float64(o.Count)/float64(o.Step+1), float64(o.Count)
	}
	w.reply(p, k, r)
}

// quick lets a worker's threads take a pull or an abort, or end an image.
func (w *world) quick(i, n int) {
	p := &w.procs[i]
	k := p.fast[n]
	p.fast = slices.Delete(slices.Clone(p.fast), n, n+1)
	switch o := k.order.(type) {
	case runner.Pull:
		at := slotOf(o.Handle)
		if m := w.memory[at]; m.row != o.Row || m.version != o.Handle.Version {
			w.fault("I4: %v pulls row %d version %d and finds %+v", p.life, o.Row, o.Handle.Version, m)
		}
		w.untouch(p.life, at)
		for j := range p.buffers {
			if p.buffers[j].row == o.Row {
				p.buffers[j].pulling = false
			}
		}
		w.reply(p, k, runner.Pulled{Row: o.Row})
	case runner.Abort:
		w.abort(p, k)
	case runner.Image:
		w.save(p, k, o)
	}
}

// abort drops the gradient and breaks off what the main thread waits in.
func (w *world) abort(p *proc, k ask) {
	in := []Input{Replied{Life: p.life, Seq: k.seq, Reply: runner.Aborted{Step: k.order.(runner.Abort).Step, Clean: true}}}
	p.main = slices.DeleteFunc(slices.Clone(p.main), func(m ask) bool {
		if !is[runner.Train](m.order) && !is[runner.Join](m.order) {
			return false
		}
		in = append(in, Replied{Life: p.life, Seq: m.seq, Reply: runner.Failed{Kind: runner.Canceled, Message: "aborted"}})
		return true
	})
	p.batch, p.reduced = "", 0
	w.give(in...)
}
