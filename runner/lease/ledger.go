package lease

import (
	"maps"
	"slices"

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
type Ledger struct {
	Arenas []Arena
	places map[runner.Row]place // of the rows that are in slots
}

// place is a slot by its indices.
type place struct{ arena, slot int }

// Clone gives a ledger that goes its own way from here.
func (l *Ledger) Clone() Ledger {
	n := Ledger{Arenas: slices.Clone(l.Arenas), places: maps.Clone(l.places)}
	for i := range n.Arenas {
		n.Arenas[i].Slots = slices.Clone(n.Arenas[i].Slots)
	}
	return n
}

// set is the only way to write an entry.
func (l *Ledger) set(at place, next Slot) {
	s := &l.Arenas[at.arena].Slots[at.slot]
	if s.State != Free {
		delete(l.places, s.Row)
	}
	if *s = next; next.State != Free {
		if l.places == nil {
			l.places = map[runner.Row]place{}
		}
		l.places[next.Row] = at
	}
}

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
	at, ok := l.places[row]
	if !ok {
		return runner.Slot{}, Slot{}, false
	}
	a := &l.Arenas[at.arena]
	return runner.Slot{Arena: a.Arena, Index: uint32(at.slot)}, a.Slots[at.slot], true
}

// Holds reports whether a slot holds row. It is looked for at a place first,
// where it was put once, or nowhere.
func (l *Ledger) Holds(row runner.Row, at runner.Slot) bool {
	if i := int(at.Arena) - 1; i >= 0 && i < len(l.Arenas) && int(at.Index) < len(l.Arenas[i].Slots) {
		if s := &l.Arenas[i].Slots[at.Index]; s.State != Free && s.Row == row {
			return true // whichever arena it is
		}
	}
	_, ok := l.places[row]
	return ok
}

// find gives the index of an arena, -1 where there is none. Arenas numbered from
// 1 in the order in which they came, as a run's are, lie where their number says.
func (l *Ledger) find(a runner.Arena) int {
	if i := int(a) - 1; i >= 0 && i < len(l.Arenas) && l.Arenas[i].Arena == a {
		return i
	}
	return slices.IndexFunc(l.Arenas, func(x Arena) bool { return x.Arena == a })
}

// Frees gives how many slots of an arena are free.
func (l *Ledger) Frees(a runner.Arena) (n int) {
	if i := l.find(a); i >= 0 {
		for j := range l.Arenas[i].Slots {
			if l.Arenas[i].Slots[j].State == Free {
				n++
			}
		}
	}
	return n
}

// FreeOf gives an arena's lowest free slot.
func (l *Ledger) FreeOf(a runner.Arena) (runner.Slot, Slot, bool) {
	if i := l.find(a); i >= 0 {
		for j := range l.Arenas[i].Slots {
			if s := &l.Arenas[i].Slots[j]; s.State == Free {
				return runner.Slot{Arena: a, Index: uint32(j)}, *s, true
			}
		}
	}
	return runner.Slot{}, Slot{}, false
}

// HighestFull gives an arena's full slot with the highest row.
func (l *Ledger) HighestFull(a runner.Arena) (at runner.Slot, s Slot, ok bool) {
	if i := l.find(a); i >= 0 {
		for j := range l.Arenas[i].Slots {
			if c := &l.Arenas[i].Slots[j]; c.State == Full && (!ok || c.Row > s.Row) {
				at, s, ok = runner.Slot{Arena: a, Index: uint32(j)}, *c, true
			}
		}
	}
	return at, s, ok
}

// Room says whether an arena has a free slot, and which is the highest row that
// one of its slots is full of; 0: none.
func (l *Ledger) Room(a runner.Arena) (free bool, highest runner.Row) {
	if i := l.find(a); i >= 0 {
		for j := range l.Arenas[i].Slots {
			switch s := &l.Arenas[i].Slots[j]; s.State {
			case Free:
				free = true
			case Full:
				highest = max(highest, s.Row)
			}
		}
	}
	return free, highest
}

// Apply applies an event to one slot. An unlawful one changes nothing and
// says what was expected.
func (l *Ledger) Apply(at runner.Slot, e Event) error {
	i := l.find(at.Arena)
	if i < 0 || int(at.Index) >= len(l.Arenas[i].Slots) {
		return runner.Errorf(runner.NotFound, "find %v: there is no such slot", at)
	}
	a := &l.Arenas[i]
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
	l.set(place{i, int(at.Index)}, next)
	if e.Kind == Release {
		a.HandOffs++
	}
	return nil
}

// ApplyAll applies Lose or Reap to every slot that the life holds.
func (l *Ledger) ApplyAll(k Kind, life runner.Life) {
	for i := range l.Arenas {
		for j, s := range l.Arenas[i].Slots {
			if s.Holder != life || s.State == Free || s.State == Full {
				continue
			}
			if next, ok := Next(s, Event{Kind: k, Life: life}); ok {
				l.set(place{i, j}, next)
			}
		}
	}
}
