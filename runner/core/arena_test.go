package core

import (
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// creators is a run in which targets make their arenas; turns let all of them
// work at once.
var creators = setup{creating: true, targets: 2, drafters: 2, micros: 1, steps: 2, slots: 2, budget: 9}

// arenaOrders gives what a worker's lives were told of arenas, in order.
func arenaOrders(x *scene, worker int) (out []runner.Order) {
	for _, a := range x.acts {
		if s, ok := a.(Send); ok && s.Life.Worker == x.core.workers[worker].id {
			switch s.Order.(type) {
			case runner.MapArena, runner.CreateArena:
				out = append(out, s.Order)
			}
		}
	}
	return out
}

func create(a runner.Arena) runner.Order {
	return runner.CreateArena{Arena: a, Kind: "cuda_vmm", Slots: 2, SlotBytes: 64}
}

func mapOf(a runner.Arena, write bool) runner.Order {
	return runner.MapArena{Arena: a, Kind: "cuda_vmm", Write: write, Slots: 2, SlotBytes: 64}
}

// Drafters are told of an arena once its descriptor is there, and of no other.
func TestDraftersWaitForTheExport(t *testing.T) {
	x := stage(t, creators, func(*world) bool { return true })
	for done := false; !done; { // all that happens without an export
		done = true
		for _, m := range x.moves() {
			if !m.fault() && !(m.verb == work && is[runner.CreateArena](x.procs[m.i].head())) {
				x.apply1(m)
				done = false
				break
			}
		}
	}
	for i, want := range [][]runner.Order{{create(1)}, {create(2)}, nil, nil} {
		if got := arenaOrders(x, i); !slices.Equal(got, want) {
			t.Errorf("%v was told %+v before any export, want %+v", x.core.workers[i].id, got, want)
		}
	}
	if n := count[MakeArena](x, nil); n != 0 {
		t.Errorf("%d arenas were made here", n)
	}
	x.answer(1, is[runner.CreateArena], runner.Created{Arena: 2})
	for i, want := range [][]runner.Order{{create(1)}, {create(2)}, {mapOf(2, false)}, {mapOf(2, false)}} {
		if got := arenaOrders(x, i); !slices.Equal(got, want) {
			t.Errorf("%v was told %+v after one export, want %+v", x.core.workers[i].id, got, want)
		}
	}
	if v := x.core.View(); v.Arenas[0].Kind != "" || v.Arenas[1].Kind != "cuda_vmm" {
		t.Errorf("kinds shown are %q and %q, want none and cuda_vmm", v.Arenas[0].Kind, v.Arenas[1].Kind)
	}
	if f := x.over(); f.Code != runner.ExitDone || x.bad != "" || count[HoldArena](x, nil) != 2 {
		t.Errorf("finished with %+v %s, holding %d arenas", f, x.bad, count[HoldArena](x, nil))
	}
}

// A target's next life creates what the last one did not export, and maps for
// writing what it did.
func TestTheNextLifeOfATargetThatCreates(t *testing.T) {
	for _, c := range []struct {
		name  string
		first func(x *scene) // of target/0's life
		want  []runner.Order
		holds int
	}{
		{"died before it exported", func(x *scene) { x.crashed(&x.procs[0], false) },
			[]runner.Order{create(1), create(1)}, 2},
		{"exported and died", func(x *scene) {
			x.answer(0, is[runner.CreateArena], runner.Created{Arena: 1})
			x.crashed(&x.procs[0], false)
		}, []runner.Order{create(1), mapOf(1, true)}, 2},
		{"exported after it was given up", func(x *scene) {
			l, seq := x.procs[0].life, x.procs[0].main[0].seq
			x.give(LaneClosed{Life: l})
			x.give(Replied{Life: l, Seq: seq, Reply: runner.Created{Arena: 1}})
		}, []runner.Order{create(1), create(1)}, 2},
		{"has no memory left", func(x *scene) {
			x.answer(0, is[runner.CreateArena], runner.Failed{Kind: runner.Exhausted, Message: "out of memory", Hint: "fewer slots"})
		}, []runner.Order{create(1), create(1)}, 2},
		{"exports another's arena", func(x *scene) {
			x.answer(0, is[runner.CreateArena], runner.Created{Arena: 2})
		}, []runner.Order{create(1), create(1)}, 2},
		{"says mapped of what it was to create", func(x *scene) {
			x.answer(0, is[runner.CreateArena], runner.Mapped{Arena: 1})
		}, []runner.Order{create(1), create(1)}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, creators, holding(0, is[runner.CreateArena]))
			c.first(x)
			if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
				t.Fatalf("finished with %+v %s\n%s", f, x.bad, x.history())
			}
			if got := arenaOrders(x, 0); !slices.Equal(got, c.want) {
				t.Errorf("target/0 was told %+v, want %+v", got, c.want)
			}
			if n := count[HoldArena](x, nil); n != c.holds {
				t.Errorf("%d arenas are held, want %d", n, c.holds)
			}
		})
	}
}

// A worker that exports what was not asked of it breaks the protocol, and what
// it sent is not kept.
func TestAnExportThatNobodyAskedFor(t *testing.T) {
	s := creators
	s.creating = false
	for _, c := range []struct {
		name string
		do   func(x *scene)
		want string
	}{
		{"in place of a row", func(x *scene) { x.answer(0, is[runner.Produce], runner.Created{Arena: 1}) }, "produce with a created"},
		{"to nothing", func(x *scene) {
			x.give(Replied{Life: x.procs[0].life, Seq: 99, Reply: runner.Created{Arena: 1}})
		}, "answered created to an order that it does not have"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, s, holding(0, is[runner.Produce]))
			c.do(x)
			x.expectKill("target/0", runner.CauseProtocol, c.want)
			if f := x.over(); f.Code != runner.ExitDone || x.bad != "" || count[HoldArena](x, nil) != 0 {
				t.Errorf("finished with %+v %s, holding %d arenas", f, x.bad, count[HoldArena](x, nil))
			}
		})
	}
}
