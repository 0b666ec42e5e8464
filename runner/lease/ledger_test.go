package lease

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// use is a lease that was given out: what a process that ignores the ledger's
// later opinion may still touch.
type use struct {
	at      runner.Slot
	version runner.Version
	life    runner.Life
	write   bool
}

// history drives a ledger at random beside a plain account of who may still
// touch which bytes: every holder, until it released or was reaped.
type history struct {
	t       *testing.T
	r       *rand.Rand
	l       Ledger
	lives   []runner.Life
	lost    map[runner.Life]bool
	touches []use
	highest map[runner.Slot]runner.Version // of any write lease
	row     runner.Row
}

// arenaOf names a target's arena.
func arenaOf(w runner.Worker) runner.Arena { return runner.Arena(w.Rank + 1) }

func (h *history) pick(role runner.Role, lost bool) (runner.Life, bool) {
	var c []runner.Life
	for _, l := range h.lives {
		if l.Worker.Role == role && h.lost[l] == lost {
			c = append(c, l)
		}
	}
	if len(c) == 0 {
		return runner.Life{}, false
	}
	return c[h.r.IntN(len(c))], true
}

// write leases a free slot, and checks I4: a higher version than any before,
// and nobody left who may touch the bytes.
func (h *history) write() {
	life, ok := h.pick(runner.Target, false)
	at, s, free := h.l.FreeOf(arenaOf(life.Worker))
	if !ok || !free {
		return
	}
	h.row++
	if err := h.l.Apply(at, Event{Kind: Write, Life: life, Row: h.row}); err != nil {
		h.t.Fatal(err)
	}
	if s.Version <= h.highest[at] {
		h.t.Fatalf("I4: %v is written under version %d, after %d", at, s.Version, h.highest[at])
	}
	h.highest[at] = s.Version
	for _, u := range h.touches {
		if u.at == at {
			h.t.Fatalf("I4: %v is written by %v while %v may still touch it", at, life, u.life)
		}
	}
	h.touches = append(h.touches, use{at, s.Version, life, true})
}

// settle ends one lease of a living holder: a write by Fill, a read by Release.
func (h *history) settle() {
	if len(h.touches) == 0 {
		return
	}
	i := h.r.IntN(len(h.touches))
	u := h.touches[i]
	e := Event{Kind: Release, Life: u.life}
	if u.write {
		e = Event{Kind: Fill, Life: u.life, Handle: runner.Handle{Arena: u.at.Arena, Slot: u.at.Index, Version: u.version}}
	}
	err := h.l.Apply(u.at, e)
	if h.lost[u.life] {
		if err == nil {
			h.t.Fatalf("I4: %v, lost, still settled %v", u.life, u.at)
		}
		return
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.touches = slices.Delete(h.touches, i, i+1)
}

func (h *history) read() {
	life, ok := h.pick(runner.Drafter, false)
	if !ok {
		return
	}
	for _, a := range h.l.Arenas {
		for j, s := range a.Slots {
			at := runner.Slot{Arena: a.Arena, Index: uint32(j)}
			if s.State == Full && h.r.IntN(2) == 0 {
				if err := h.l.Apply(at, Event{Kind: Read, Life: life}); err != nil {
					h.t.Fatal(err)
				}
				h.touches = append(h.touches, use{at, s.Version, life, false})
				return
			}
		}
	}
}

// die loses a life, or reaps one, which then starts again.
func (h *history) die() {
	role := runner.Target
	if h.r.IntN(2) == 0 {
		role = runner.Drafter
	}
	if life, ok := h.pick(role, false); ok && h.r.IntN(3) == 0 {
		h.lost[life] = true
		h.l.ApplyAll(Lose, life)
	}
	life, ok := h.pick(role, h.r.IntN(4) != 0) // now and then without having been lost
	if !ok || h.r.IntN(2) == 0 {
		return
	}
	h.l.ApplyAll(Reap, life)
	h.touches = slices.DeleteFunc(h.touches, func(u use) bool { return u.life == life })
	h.lives[slices.Index(h.lives, life)] = runner.Life{Worker: life.Worker, Generation: life.Generation + 1}
}

func (h *history) check() {
	rows, held := map[runner.Row]bool{}, 0
	for i := range h.l.Arenas {
		h.room(h.l.Arenas[i].Arena)
	}
	for _, a := range h.l.Arenas {
		for j, s := range a.Slots {
			if s.State == Free {
				continue
			}
			if rows[s.Row] {
				h.t.Fatalf("row %d is in two slots", s.Row)
			}
			rows[s.Row] = true
			if s.State != Full {
				held++
			}
			if s.State == Full && s.Handle.Version != s.Version {
				h.t.Fatalf("I4: slot %d of arena %d is full under version %d, its handle says %d", j, a.Arena, s.Version, s.Handle.Version)
			}
		}
	}
	if held != len(h.touches) {
		h.t.Fatalf("%d slots are held, %d leases are out", held, len(h.touches))
	}
}

// room checks that Room says what FreeOf and HighestFull find.
func (h *history) room(a runner.Arena) {
	_, _, free := h.l.FreeOf(a)
	_, s, _ := h.l.HighestFull(a)
	if gotFree, gotHighest := h.l.Room(a); gotFree != free || gotHighest != s.Row {
		h.t.Fatalf("arena %d has room %t, %d; want %t, %d", a, gotFree, gotHighest, free, s.Row)
	}
}

func TestI4_RandomHistories(t *testing.T) {
	for seed := range uint64(400) {
		h := &history{t: t, r: rand.New(rand.NewPCG(seed, 4)), lost: map[runner.Life]bool{}, highest: map[runner.Slot]runner.Version{}}
		for i := range 2 {
			h.lives = append(h.lives, target(i, 1), drafter(i, 1))
			h.l.Add(runner.Arena(i+1), runner.Worker{Role: runner.Target, Rank: runner.Rank(i)}, 3)
		}
		for range 400 {
			switch n := h.r.IntN(8); {
			case n < 2:
				h.write()
			case n < 4:
				h.settle()
			case n < 6:
				h.read()
			case n < 7:
				h.die()
			default:
				a := runner.Arena(1 + h.r.IntN(2))
				if at, _, ok := h.l.HighestFull(a); ok {
					if err := h.l.Apply(at, Event{Kind: Drop}); err != nil {
						t.Fatal(err)
					}
				}
			}
			h.check()
		}
		if h.row < 10 {
			t.Fatalf("seed %d: only %d rows were written: the history shows nothing", seed, h.row)
		}
	}
}

// What the ledger refuses besides unlawful events of a slot.
func TestI4_LedgerRefuses(t *testing.T) {
	var l Ledger
	w := target(0, 1)
	l.Add(1, w.Worker, 2)
	first, second := runner.Slot{Arena: 1}, runner.Slot{Arena: 1, Index: 1}
	if err := l.Apply(first, Event{Kind: Write, Life: w, Row: 3}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		at   runner.Slot
		e    Event
		kind runner.Kind
	}{
		{"a row in a second slot", second, Event{Kind: Write, Life: w, Row: 3}, runner.Internal},
		{"a target writing in another's arena", second, Event{Kind: Write, Life: target(1, 1), Row: 4}, runner.Internal},
		{"an arena that is not there", runner.Slot{Arena: 2}, Event{Kind: Write, Life: w, Row: 4}, runner.NotFound},
		{"a slot that is not there", runner.Slot{Arena: 1, Index: 2}, Event{Kind: Drop}, runner.NotFound},
		{"a handle that names another slot", first, Event{Kind: Fill, Life: w, Handle: runner.Handle{Arena: 1, Slot: 1, Version: 1}}, runner.Invalid},
		{"a handle of another version", first, Event{Kind: Fill, Life: w, Handle: runner.Handle{Arena: 1, Version: 2}}, runner.Stale},
	} {
		if err := l.Apply(c.at, c.e); runner.KindOf(err) != c.kind || err == nil {
			t.Errorf("%s: got %v, want kind %v", c.name, err, c.kind)
		}
	}
}
