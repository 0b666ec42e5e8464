package core

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/gate"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// launched queues a configured life at the gate; a target's first one also
// has its arena made.
func (c *Core) launched(in Launched) {
	w := c.find(in.Life)
	if w == nil || w.life.State != life.Launching {
		return
	}
	w.slotBytes, w.imageBytes, w.parameters = in.SlotBytes, in.ImageBytes, in.Parameters
	if why := c.misfit(w); why != "" {
		c.kill(w, runner.CauseProtocol, why, "workers of one run must have the same configuration and versions")
		return
	}
	if w.id.Role == runner.Target && w.arena == 0 {
		w.arena = runner.Arena(len(c.ledger.Arenas) + 1)
		c.ledger.Add(w.arena, w.id, c.cfg.Slots)
		if !c.targetsCreate() {
			c.do(MakeArena{Arena: w.arena, Worker: w.id, Slots: c.cfg.Slots, SlotBytes: w.slotBytes})
		}
		c.figures.arenas = append(c.figures.arenas, arenaFigures{slotBytes: w.slotBytes})
	}
	c.move(w, life.Launched)
	c.admit(gate.Ask, in.Life)
}

// misfit says how a life differs from what the run was laid out for.
func (c *Core) misfit(w *worker) string {
	if w.id.Role == runner.Target && w.arena != 0 {
		if want := c.figures.arenas[w.arena-1].slotBytes; want != w.slotBytes {
			return fmt.Sprintf("its slots take %d bytes, want %d as in its earlier life", w.slotBytes, want)
		}
	}
	for _, r := range c.ranks {
		o := &c.workers[r]
		if w.id.Role == runner.Drafter && o != w && o.life.State.Running() && o.life.State > life.Launching && o.imageBytes != w.imageBytes {
			return fmt.Sprintf("its image takes %d bytes, want %d as %v's", w.imageBytes, o.imageBytes, o.id)
		}
	}
	return ""
}

// certified frees the life's place at the gate; from here on its lane is used.
func (c *Core) certified(in Certified) {
	w := c.find(in.Life)
	if w == nil || !c.move(w, life.Prove) {
		return
	}
	w.certificate, w.heard = in.Certificate, c.now
	w.has, w.at = w.id.Role == runner.Drafter, 0
	c.emit(of(w, runner.Info, "worker certified", ""))
	c.admit(gate.Prove, in.Life)
}

func (c *Core) arenaMade(in ArenaMade) {
	for i := range c.workers {
		if w := &c.workers[i]; w.arena != 0 && w.arena == in.Arena {
			w.made = true
			c.figures.arenas[in.Arena-1].kind = in.Kind
		}
	}
}

// targetsCreate reports whether arenas lie in their targets' GPUs.
func (c *Core) targetsCreate() bool { return c.cfg.ArenaKind == runner.ArenaCUDA }

// prepare has arenas mapped: a target's by itself to write, everyone's by each
// drafter to read. A life is ready once nothing that exists is left to map. An
// arena exists from its descriptor's arrival on: a target that died before it
// sent one leaves nothing behind, and its next life creates.
//
// Where all are ready there is nothing to look at: a target is once its arena is
// mapped, and everyone was asked to map that by then.
func (c *Core) prepare() bool { return !c.allReady() && c.prepareEach() }

func (c *Core) prepareEach() (acted bool) {
	made := 0
	for _, t := range c.targets {
		if c.workers[t].made {
			made++
		}
	}
	for i := range c.workers {
		w := &c.workers[i]
		if w.life.State != life.Certified && w.life.State != life.Ready {
			continue
		}
		if w.life.State == life.Ready && len(w.maps) == made && w.id.Role == runner.Drafter {
			continue // asked for all there is
		}
		if c.create(w) {
			acted = true
			continue
		}
		ready := w.id.Role == runner.Drafter || w.made
		for _, t := range c.targets {
			owner := &c.workers[t]
			if !owner.made || w.id.Role == runner.Target && owner != w {
				continue
			}
			if !w.asked(owner.arena) {
				w.maps = append(w.maps, mapping{arena: owner.arena})
				c.send(w, runner.MapArena{Arena: owner.arena, Kind: c.figures.arenas[owner.arena-1].kind, Write: owner == w, Slots: c.cfg.Slots, SlotBytes: owner.slotBytes}, noTurn, 0)
				acted = true
			}
			ready = ready && w.mapped(owner.arena)
		}
		if ready && w.life.State == life.Certified && c.move(w, life.Prepared) {
			c.started(w.id.Role)
			if c.lacks(w) {
				c.noImage = none // there may be memory for one now
			}
			c.emit(of(w, runner.Info, "worker ready", ""))
			acted = true
		}
	}
	return acted
}

// create has a target make its arena, where that is its to do and not done.
func (c *Core) create(w *worker) bool {
	if !c.targetsCreate() || w.id.Role != runner.Target || w.made || w.asked(w.arena) {
		return false
	}
	w.maps = append(w.maps, mapping{arena: w.arena})
	c.send(w, runner.CreateArena{Arena: w.arena, Kind: c.cfg.ArenaKind, Slots: c.cfg.Slots, SlotBytes: w.slotBytes}, noTurn, 0)
	return true
}

// created takes a target's arena over. The target has mapped it itself.
func (c *Core) created(w *worker, o runner.CreateArena, r runner.Created) bool {
	if r.Arena != o.Arena {
		return false
	}
	w.made = true
	c.figures.arenas[w.arena-1].kind = o.Kind
	c.do(HoldArena{Arena: w.arena})
	return w.mapDone(r.Arena)
}

func (w *worker) asked(a runner.Arena) bool {
	for _, m := range w.maps {
		if m.arena == a {
			return true
		}
	}
	return false
}

func (c *Core) mapped(w *worker, o runner.MapArena, r runner.Mapped) bool {
	return r.Arena == o.Arena && w.mapDone(r.Arena)
}

// mapDone notes that a life has an arena mapped that it was asked to map.
func (w *worker) mapDone(a runner.Arena) bool {
	for i := range w.maps {
		if w.maps[i].arena == a {
			w.maps[i].done = true
			return true
		}
	}
	return false
}
