package core

import (
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// What is eager in a search of steps: rows come by themselves.
func rowsEager(w *world, m move) bool {
	switch m.verb {
	case prove:
		return true
	case quick:
		return is[runner.Pull](w.procs[m.i].fast[m.n].order)
	case work:
		return w.core.workers[m.i].id.Role == runner.Target
	}
	return false
}

// What is eager in a search of slots: steps pass by themselves.
func stepsEager(w *world, m move) bool {
	switch m.verb {
	case prove, syncs, publish, broken:
		return true
	case quick:
		return !is[runner.Pull](w.procs[m.i].fast[m.n].order)
	case work:
		return w.core.workers[m.i].id.Role == runner.Drafter
	}
	return false
}

// What is eager in a search of the gate: all but certificates, deaths and reaps.
func gateEager(w *world, m move) bool {
	return !m.fault() && m.verb != prove && m.verb != reap
}

// two drafters, a target, an image and a checkpoint after each step.
func steps(n int) setup {
	return setup{targets: 1, drafters: 2, micros: 1, steps: n, slots: 2, imageEvery: 1, checkpoint: 1, budget: 100}
}

// A step is applied by both drafters or by none, with the same batch every
// time, whatever dies and whenever; every sample is settled exactly once; and
// from every state the run can finish.
func TestI5_I6_I7_I11_SearchSteps(t *testing.T) {
	silent := steps(2)
	silent.silent = true
	all(t, rowsEager,
		search{setup: steps(2), crashes: 1, spared: runner.Target},
		search{setup: steps(2), crashes: 1, outages: 1, spared: runner.Target},
		search{setup: steps(2), crashes: 2, outages: 1, spared: runner.Target},
		search{setup: silent, crashes: 1, outages: 1, spared: runner.Target},
		search{setup: steps(3), crashes: 2, spared: runner.Target},
	)
}

// The same with rows that are not finite: their skips, and the plans without
// them, outlive every death.
func TestI5_I6_SearchSkips(t *testing.T) {
	s := steps(2)
	s.poison = []runner.Sample{1, 2}
	all(t, rowsEager,
		search{setup: s, crashes: 1, spared: runner.Target},
		search{setup: s, outages: 2, spared: runner.Target},
		search{setup: s, crashes: 1, outages: 1, spared: runner.Target},
	)
}

// A graceful stop at any moment, deaths around it: what was decided is on the
// disk, and nothing else.
func TestI5_I6_SearchStops(t *testing.T) {
	s := steps(2)
	s.stops, s.checkpoint = 1, 0
	all(t, rowsEager,
		search{setup: s, spared: runner.Target},
		search{setup: s, crashes: 1, spared: runner.Target},
		search{setup: s, outages: 1, spared: runner.Target},
	)
}

// No state of slots, row buffers and turns is stuck, whoever dies, also for
// good; a slot is written only under a higher version, once nobody may touch it.
func TestI4_I11_SearchSlots(t *testing.T) {
	all(t, stepsEager,
		search{setup: setup{targets: 1, drafters: 2, micros: 2, steps: 2, slots: 1, budget: 9}, crashes: 2},
		search{setup: setup{targets: 2, drafters: 2, micros: 1, steps: 3, slots: 1}, crashes: 1, spared: runner.Drafter}, // one target fails for good
		search{setup: setup{targets: 1, drafters: 2, micros: 2, steps: 2, slots: 2, turns: 1, budget: 9}, crashes: 2},
		search{setup: setup{targets: 1, drafters: 3, micros: 2, steps: 2, slots: 2, turns: 2, budget: 9}, crashes: 1},
		search{setup: setup{targets: 2, drafters: 2, micros: 1, steps: 3, slots: 1, imageEvery: 1, budget: 9}, crashes: 2},
		search{setup: setup{targets: 1, drafters: 2, micros: 3, steps: 2, slots: 2, budget: 9}, crashes: 1, outages: 1},
	)
}

// Pairs share devices, and evaluations their targets' turns: drafters go first,
// and no state is stuck, whoever dies, also for good.
func TestI4_I11_SearchPairs(t *testing.T) {
	scored := Evaluation{Every: 1, Heldout: 1, HeldoutChunk: 1}
	all(t, stepsEager,
		search{setup: setup{pairs: true, targets: 2, drafters: 2, micros: 2, steps: 2, slots: 1, takes: [2]time.Duration{3, 2}, budget: 9}, crashes: 1}, // paced
		search{setup: setup{pairs: true, targets: 2, drafters: 1, micros: 2, steps: 2, slots: 1, imageEvery: 1, evaluation: scored, budget: 9}, crashes: 1},
		search{setup: setup{pairs: true, targets: 1, drafters: 2, micros: 2, steps: 2, slots: 2, takes: [2]time.Duration{2, 3}, budget: 9}, crashes: 1}, // one target feeds both
		search{setup: setup{pairs: true, targets: 2, drafters: 2, micros: 1, steps: 3, slots: 1}, crashes: 1, spared: runner.Drafter},
	)
	all(t, nil, search{setup: setup{pairs: true, targets: 1, drafters: 1, micros: 2, steps: 2, slots: 1, budget: 9}, crashes: 1})
}

// No order without a certificate, no place at the gate before a certificate
// or a reap, however certificates, deaths and reaps fall.
func TestI1_I2_SearchGate(t *testing.T) {
	all(t, gateEager,
		search{setup: setup{targets: 1, drafters: 2, micros: 1, steps: 1, slots: 2, budget: 9}, crashes: 2},
		search{setup: setup{targets: 1, drafters: 2, micros: 1, steps: 1, slots: 2, budget: 9}, crashes: 3, outages: 1},
		search{setup: setup{targets: 2, drafters: 2, micros: 1, steps: 2, slots: 1, budget: 9}, crashes: 3},
	)
}

// Everything that can happen, in every order.
func TestI1_I2_I4_I5_I6_I11_SearchAll(t *testing.T) {
	one := setup{targets: 1, drafters: 1, micros: 1, steps: 2, slots: 1, imageEvery: 1, checkpoint: 1, budget: 9}
	all(t, nil,
		search{setup: one, crashes: 1},
		search{setup: one, crashes: 1, outages: 1},
		search{setup: setup{targets: 1, drafters: 2, micros: 1, steps: 1, slots: 1, budget: 9}, crashes: 1},
	)
}

// Arenas that targets create: whoever dies before, at or after an export, each
// exists once, and nobody is told to map one that does not.
func TestI4_I11_SearchArenasOfTargets(t *testing.T) {
	all(t, stepsEager,
		search{setup: setup{creating: true, targets: 1, drafters: 2, micros: 1, steps: 2, slots: 1, budget: 9}, crashes: 2},
		search{setup: setup{creating: true, targets: 2, drafters: 1, micros: 1, steps: 2, slots: 1, budget: 9}, crashes: 2, outages: 1},
		search{setup: setup{creating: true, silent: true, targets: 2, drafters: 2, micros: 1, steps: 2, slots: 1, budget: 9}, crashes: 2},
	)
	all(t, nil, search{setup: setup{creating: true, targets: 1, drafters: 1, micros: 1, steps: 1, slots: 1, budget: 9}, crashes: 2})
}

// Without any one of its protections the core breaks: the search sees it.
func TestI5_I6_I11_EveryProtectionIsNeeded(t *testing.T) {
	unsafe := steps(2)
	unsafe.fragile = true
	slots := setup{targets: 1, drafters: 2, micros: 2, steps: 2, slots: 1, budget: 9}
	paired := slots
	paired.pairs, paired.targets = true, 2
	for _, c := range []struct {
		name    string
		setup   setup
		without protections
		eager   func(*world, move) bool
		want    string
	}{
		{"a plan is durable before its commit", steps(2), protections{durablePlan: true}, rowsEager, "I7: step 1 was applied with"},
		{"a decided step is never aborted", steps(2), protections{finalChoice: true}, rowsEager, "I5"},
		{"journaled plans are followed first", steps(2), protections{reusedPlans: true}, rowsEager, "nothing was trained"},
		{"the journal is durable before a checkpoint", steps(2), protections{durablePlan: true, durableFirst: true}, rowsEager, "rule 7"},
		{"a step is applied after its decision only", unsafe, protections{}, rowsEager, "I5"},
		{"the highest full slot gives way", slots, protections{dropHighest: true}, stepsEager, "I11: stuck"},
		{"a drafter without a row holds no target back", paired, protections{rowsInHand: true}, stepsEager, "I11: stuck"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := search{setup: c.setup, crashes: 2, outages: 1, eager: c.eager, limit: 100_000}
			s.setup.without = c.without
			s.fails(t, c.want)
		})
	}
}
