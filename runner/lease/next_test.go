package lease

import (
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func target(rank, generation int) runner.Life {
	return runner.Life{Worker: runner.Worker{Role: runner.Target, Rank: runner.Rank(rank)}, Generation: runner.Generation(generation)}
}

func drafter(rank, generation int) runner.Life {
	return runner.Life{Worker: runner.Worker{Role: runner.Drafter, Rank: runner.Rank(rank)}, Generation: runner.Generation(generation)}
}

func TestI4_Next(t *testing.T) {
	w, r, other := target(0, 1), drafter(0, 1), target(0, 2)
	free := Slot{Version: 5}
	writing := Slot{State: Writing, Version: 5, Row: 7, Holder: w}
	full := Slot{State: Full, Version: 5, Row: 7, Handle: runner.Handle{Version: 5, CRC: 9}}
	leased := Slot{State: Leased, Version: 5, Row: 7, Holder: r, Handle: full.Handle}
	lostWriter := Slot{State: Quarantined, Version: 5, Row: 7, Holder: w}
	lostReader := Slot{State: Quarantined, Version: 5, Row: 7, Holder: r, Reading: true, Handle: full.Handle}
	freeAgain := Slot{Version: 6}
	for _, c := range []struct {
		name string
		from Slot
		e    Event
		want Slot
		ok   bool
	}{
		{"a free slot is leased to a writer under its version", free, Event{Kind: Write, Life: w, Row: 7}, writing, true},
		{"row 0 is no row", free, Event{Kind: Write, Life: w}, free, false},
		{"nobody writes while another writes", writing, Event{Kind: Write, Life: other, Row: 8}, writing, false},
		{"nobody writes over a full slot", full, Event{Kind: Write, Life: w, Row: 8}, full, false},
		{"nobody writes under a reader", leased, Event{Kind: Write, Life: w, Row: 8}, leased, false},
		{"nobody writes into quarantine", lostWriter, Event{Kind: Write, Life: other, Row: 8}, lostWriter, false},
		{"the writer fills it", writing, Event{Kind: Fill, Life: w, Handle: full.Handle}, full, true},
		{"a handle of an older version is refused", writing, Event{Kind: Fill, Life: w, Handle: runner.Handle{Version: 4}}, writing, false},
		{"an older generation cannot fill it", writing, Event{Kind: Fill, Life: other, Handle: full.Handle}, writing, false},
		{"a late fill after quarantine is refused", lostWriter, Event{Kind: Fill, Life: w, Handle: full.Handle}, lostWriter, false},
		{"a full slot is leased to a reader", full, Event{Kind: Read, Life: r}, leased, true},
		{"two readers cannot have it", leased, Event{Kind: Read, Life: drafter(1, 1)}, leased, false},
		{"the reader's release frees it under a higher version", leased, Event{Kind: Release, Life: r}, freeAgain, true},
		{"another's release does not", leased, Event{Kind: Release, Life: drafter(1, 1)}, leased, false},
		{"a full slot may be dropped", full, Event{Kind: Drop}, freeAgain, true},
		{"a leased one may not", leased, Event{Kind: Drop}, leased, false},
		{"a writing one may not", writing, Event{Kind: Drop}, writing, false},
		{"a lost writer's slot is quarantined", writing, Event{Kind: Lose, Life: w}, lostWriter, true},
		{"so is a lost reader's", leased, Event{Kind: Lose, Life: r}, lostReader, true},
		{"a lost life changes nothing of others", leased, Event{Kind: Lose, Life: w}, leased, false},
		{"a lost writer changes nothing once it is full", full, Event{Kind: Lose, Life: w}, full, false},
		{"a reaped writer's slot is free under a higher version", lostWriter, Event{Kind: Reap, Life: w}, freeAgain, true},
		{"also when reaped without having been lost", writing, Event{Kind: Reap, Life: w}, freeAgain, true},
		{"a reaped reader's slot is full again, same version", lostReader, Event{Kind: Reap, Life: r}, full, true},
		{"also when reaped without having been lost", leased, Event{Kind: Reap, Life: r}, full, true},
		{"a reaped stranger frees nothing", lostWriter, Event{Kind: Reap, Life: other}, lostWriter, false},
	} {
		got, ok := Next(c.from, c.e)
		if ok != c.ok || !same(got, c.want) {
			t.Errorf("%s: got %+v, %v, want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func same(a, b Slot) bool {
	return a.State == b.State && a.Version == b.Version && a.Row == b.Row && a.Holder == b.Holder && a.Reading == b.Reading && a.Handle.Version == b.Handle.Version && a.Handle.CRC == b.Handle.CRC
}
