// Package lease is the ledger of slots: who may write or read which, under
// which version. It is pure, and no time enters it: a slot changes hands
// because its holder said so or was reaped, never because a timer ran out.
package lease

import (
	"github.com/dflash-runner/dflash-runner/runner"
)

// State is where a slot stands.
type State uint8

// The states.
const (
	Free        State = iota
	Writing           // leased to a target, which fills it
	Full              // holds a row; nobody touches it
	Leased            // leased to a drafter, which reads it
	Quarantined       // its holder is believed dead, but may still touch it
)

var stateNames = [...]string{"free", "writing", "full", "leased", "quarantined"}

// String gives the name shown in status.
func (s State) String() string { return stateNames[s] }

// Slot is one slot's entry. A slot that is not free holds Row under Version.
type Slot struct {
	State   State
	Version runner.Version
	Row     runner.Row
	Holder  runner.Life   // writer or reader; zero while free or full
	Reading bool          // of a quarantined slot: its holder was a reader
	Handle  runner.Handle // once full
}

// Kind is what happens to a slot.
type Kind uint8

// The kinds of events.
const (
	Write   Kind = iota // lease a free slot to a target
	Fill                // the target says the row is complete
	Read                // lease a full slot to a drafter
	Release             // the reader is done
	Drop                // a full slot's row is given up
	Lose                // the holder's lane closed
	Reap                // the holder was reaped
)

// Event is an event of one slot. Row goes with Write, Handle with Fill; Life
// is the holder, for all but Drop.
type Event struct {
	Kind   Kind
	Life   runner.Life
	Row    runner.Row
	Handle runner.Handle
}

// Next gives the slot after an event, and whether the event is lawful in its
// state. The version rises whenever the slot becomes free, so no handle given
// out before names what is written next (I4).
func Next(s Slot, e Event) (Slot, bool) {
	mine := e.Life == s.Holder
	switch {
	case e.Kind == Write && s.State == Free && e.Row != 0:
		return Slot{State: Writing, Version: s.Version, Row: e.Row, Holder: e.Life}, true
	case e.Kind == Fill && s.State == Writing && mine && e.Handle.Version == s.Version:
		return Slot{State: Full, Version: s.Version, Row: s.Row, Handle: e.Handle}, true
	case e.Kind == Read && s.State == Full:
		s.State, s.Holder = Leased, e.Life
		return s, true
	case e.Kind == Release && s.State == Leased && mine,
		e.Kind == Drop && s.State == Full:
		return freed(s), true
	case e.Kind == Lose && (s.State == Writing || s.State == Leased) && mine:
		s.State, s.Reading = Quarantined, s.State == Leased
		return s, true
	case e.Kind == Reap && mine && (s.State == Leased || s.State == Quarantined && s.Reading):
		// A reader changes nothing: the row is still good.
		return Slot{State: Full, Version: s.Version, Row: s.Row, Handle: s.Handle}, true
	case e.Kind == Reap && mine && (s.State == Writing || s.State == Quarantined):
		return freed(s), true
	}
	return s, false
}

func freed(s Slot) Slot { return Slot{State: Free, Version: s.Version + 1} }
