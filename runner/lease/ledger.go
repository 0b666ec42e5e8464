package lease

import (
	"github.com/dflash-runner/dflash-runner/runner"
)

// Arena is the slots of one target.
type Arena struct {
	Arena    runner.Arena
	Owner    runner.Worker // its lives alone write here
	Slots    []Slot
	HandOffs uint64 // rows released by a reader
}

// Ledger is the entries of all slots, keyed by row: no row is in two slots.
type Ledger struct{ Arenas []Arena }

// Add adds an arena of n free slots.
func (l *Ledger) Add(a runner.Arena, owner runner.Worker, n uint32) {
	slots := make([]Slot, n)
	for i := range slots {
		slots[i].Version = 1
	}
	l.Arenas = append(l.Arenas, Arena{Arena: a, Owner: owner, Slots: slots})
}

// Find gives the slot that holds row.
func (l *Ledger) Find(row runner.Row) (runner.Slot, Slot, bool) {
	for i := range l.Arenas {
		for j, s := range l.Arenas[i].Slots {
			if s.State != Free && s.Row == row {
				return runner.Slot{Arena: l.Arenas[i].Arena, Index: uint32(j)}, s, true
			}
		}
	}
	return runner.Slot{}, Slot{}, false
}

// Rows gives the rows that are in slots.
func (l *Ledger) Rows() map[runner.Row]bool {
	rows := map[runner.Row]bool{}
	for i := range l.Arenas {
		for _, s := range l.Arenas[i].Slots {
			if s.State != Free {
				rows[s.Row] = true
			}
		}
	}
	return rows
}

// FreeOf gives the lowest free slot that lives of owner may write.
func (l *Ledger) FreeOf(owner runner.Worker) (runner.Slot, Slot, bool) {
	for i := range l.Arenas {
		for j, s := range l.Arenas[i].Slots {
			if l.Arenas[i].Owner == owner && s.State == Free {
				return runner.Slot{Arena: l.Arenas[i].Arena, Index: uint32(j)}, s, true
			}
		}
	}
	return runner.Slot{}, Slot{}, false
}

// HighestFull gives owner's full slot with the highest row.
func (l *Ledger) HighestFull(owner runner.Worker) (at runner.Slot, s Slot, ok bool) {
	for i := range l.Arenas {
		for j, c := range l.Arenas[i].Slots {
			if l.Arenas[i].Owner == owner && c.State == Full && (!ok || c.Row > s.Row) {
				at, s, ok = runner.Slot{Arena: l.Arenas[i].Arena, Index: uint32(j)}, c, true
			}
		}
	}
	return at, s, ok
}

// Apply applies an event to one slot. An unlawful one changes nothing and
// says what was expected.
func (l *Ledger) Apply(at runner.Slot, e Event) error {
	for i := range l.Arenas {
		a := &l.Arenas[i]
		if a.Arena != at.Arena || int(at.Index) >= len(a.Slots) {
			continue
		}
		if e.Kind == Write {
			if old, _, ok := l.Find(e.Row); ok || e.Life.Worker != a.Owner {
				return runner.Errorf(runner.Internal, "lease %v: row %d is in %v already, or %v does not own the arena", at, e.Row, old, e.Life)
			}
		}
		if e.Kind == Fill && (e.Handle.Arena != at.Arena || e.Handle.Slot != at.Index) {
			return runner.Errorf(runner.Invalid, "fill %v: the handle names arena %d slot %d", at, e.Handle.Arena, e.Handle.Slot)
		}
		old := a.Slots[at.Index]
		next, ok := Next(old, e)
		if !ok {
			return runner.Errorf(runner.Stale, "apply event %d of %v to %v: it is %v, version %d, row %d, holder %v; handle version %d", e.Kind, e.Life, at, old.State, old.Version, old.Row, old.Holder, e.Handle.Version)
		}
		a.Slots[at.Index] = next
		if e.Kind == Release {
			a.HandOffs++
		}
		return nil
	}
	return runner.Errorf(runner.NotFound, "find %v: there is no such slot", at)
}

// ApplyAll applies Lose or Reap to every slot that the life holds.
func (l *Ledger) ApplyAll(k Kind, life runner.Life) {
	for i := range l.Arenas {
		for j, s := range l.Arenas[i].Slots {
			if s.Holder != life || s.State == Free || s.State == Full {
				continue
			}
			if next, ok := Next(s, Event{Kind: k, Life: life}); ok {
				l.Arenas[i].Slots[j] = next
			}
		}
	}
}
