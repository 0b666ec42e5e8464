package drive_test

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// creating has the target make its arena.
func creating(r *rig) { r.config.Core.ArenaKind = runner.ArenaCUDA }

// TestTargetsArenaIsHeld: a run over an arena that its target made ends whole,
// shows its kind and size, and gives the descriptor back.
func TestTargetsArenaIsHeld(t *testing.T) {
	bubble(t, "undisturbed", func(t *testing.T, r *rig) {
		creating(r)
		f, v := r.run()
		r.wholeRun(f, v)
		if len(v.Failures) != 0 || r.memory.Taken() != 1 {
			t.Errorf("%d arenas were taken, failures %+v", r.memory.Taken(), v.Failures)
		}
		a := v.View.Arenas[0]
		if a.Kind != runner.ArenaCUDA || v.ArenaBytes[a.Arena] != 3*drivetest.SlotBytes || a.HandOffs != 24 {
			t.Errorf("arena %+v of %d bytes", a, v.ArenaBytes[a.Arena])
		}
	})
}

// TestI6_DeathAroundAnExport: whatever a target does at its export, the arena
// is made once in the end, and no descriptor stays open.
func TestI6_DeathAroundAnExport(t *testing.T) {
	for fault, want := range map[drivetest.Fault]struct {
		cause runner.Cause
		taken int64 // descriptors that came
	}{
		drivetest.Die:     {runner.CauseSignal, 1},
		drivetest.Hang:    {runner.CauseDeadline, 1},
		drivetest.Refuse:  {runner.CausePython, 1},
		drivetest.Broken:  {runner.CauseCUDA, 1},
		drivetest.Wrong:   {runner.CauseProtocol, 1},
		drivetest.Outside: {runner.CauseProtocol, 1}, // not even looked at
		drivetest.Late:    {runner.CauseSignal, 1},   // the only one: its next life maps it
	} {
		bubble(t, string(fault), func(t *testing.T, r *rig) {
			creating(r)
			r.launcher.Fault = once(target, "create", 1, fault)
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a finalizer would close what was forgotten
			before := openFDs(t)
			f, v := r.run()
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors are open, want %d", after, before)
			}
			r.wholeRun(f, v)
			if len(v.Failures) != 1 || v.Failures[0].Worker != target || v.Failures[0].Cause != want.cause {
				t.Errorf("failures %+v, want one of the target for %s", v.Failures, want.cause)
			}
			if n := r.memory.Taken(); n != want.taken {
				t.Errorf("%d arenas were taken, want %d", n, want.taken)
			}
		})
	}
}

// TestI6_DeathWithATargetsArena: rows outlive the target that made them and
// its arena; its next life writes into the same memory.
func TestI6_DeathWithATargetsArena(t *testing.T) {
	for w, orders := range map[runner.Worker][]string{target: {"produce", "evaluate"}, drafter0: {"arena", "pull"}} {
		for _, order := range orders {
			bubble(t, w.String()+" "+order, func(t *testing.T, r *rig) {
				creating(r)
				r.launcher.Fault = once(w, order, 1, drivetest.Die)
				f, v := r.run()
				r.wholeRun(f, v)
				if len(v.Failures) != 1 || r.memory.Taken() != 1 {
					t.Errorf("%d arenas were taken, failures %+v", r.memory.Taken(), v.Failures)
				}
			})
		}
	}
}

// TestRefusedExportEndsItsSender: a descriptor that is not one of a GPU's
// driver is refused, and whoever sent it is replaced.
func TestRefusedExportEndsItsSender(t *testing.T) {
	bubble(t, "refused", func(t *testing.T, r *rig) {
		creating(r)
		first := true
		r.memory.RefuseArena = func() error {
			if first {
				first = false
				return runner.Errorf(runner.Invalid, "want a descriptor of the GPU's driver")
			}
			return nil
		}
		f, v := r.run()
		r.wholeRun(f, v)
		if len(v.Failures) != 1 || v.Failures[0].Cause != runner.CauseProtocol {
			t.Errorf("failures %+v, want one for protocol", v.Failures)
		}
	})
}
