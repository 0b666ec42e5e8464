package drive_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// who is struck: the supervisor, or workers.
type who struct {
	name    string
	workers []runner.Worker // none: the supervisor
}

// victims are all that is struck, one after another.
func victims() []who {
	return []who{{"the supervisor", nil}, {"drafter/0", []runner.Worker{drafter0}}, {"drafter/1", []runner.Worker{drafter1}},
		{"both drafters", []runner.Worker{drafter0, drafter1}}, {"a target", []runner.Worker{target}}, {"everybody", []runner.Worker{target, drafter0, drafter1}}}
}

// die ends them now.
func (x who) die(t *term) {
	if x.workers == nil {
		t.kill()
	}
	for _, w := range x.workers {
		if p := t.newest(w); p != nil {
			p.Die()
		}
	}
}

func (t *term) newest(w runner.Worker) (p *drivetest.Process) {
	for _, q := range t.launcher.All() {
		if q.Life().Worker == w {
			p = q
		}
	}
	return p
}

// TestChaos_OnPurpose strikes at the moments that the rules of steps are about,
// each once in a run: it ends as the undisturbed one.
func TestChaos_OnPurpose(t *testing.T) {
	for _, x := range victims() {
		purpose(t, "the durable plan and the decision/"+x.name, func(_ *world, hit func() bool) hooks {
			return hooks{durable: func(t *term, next runner.Step) {
				if next >= 2 && hit() {
					x.die(t)
				}
			}}
		})
		purpose(t, "the decision and each commit/"+x.name, func(_ *world, hit func() bool) hooks {
			return hooks{appended: func(t *term, r runner.Record) {
				if c, ok := r.(runner.CommitRecord); ok && c.Step == 3 && hit() {
					x.die(t)
				}
			}}
		})
		purpose(t, "a restore and its durable record/"+x.name, func(_ *world, hit func() bool) hooks {
			first := restoreAt(3)
			return hooks{appended: func(t *term, r runner.Record) {
				first(t, r)
				if _, ok := r.(runner.RestoreRecord); ok && hit() {
					x.die(t)
				}
			}}
		})
	}
	onPurposeInOrders(t)
	onPurposeOnDisk(t)
}

// restoreAt has both drafters die as a step is decided, once: it is undone.
func restoreAt(n runner.Step) func(*term, runner.Record) {
	var once sync.Once
	return func(t *term, r runner.Record) {
		if c, ok := r.(runner.CommitRecord); ok && c.Step == n {
			once.Do(func() {
				t.newest(drafter0).Die()
				t.newest(drafter1).Die()
			})
		}
	}
}

// atOrder strikes at an order of a drafter that pick accepts, once it has
// waited so long that its peers are done with theirs.
func atOrder(x who, hit func() bool, pick func(id runner.Life, o runner.Order) bool) func(*term, runner.Life, runner.Order) bool {
	return func(t *term, id runner.Life, o runner.Order) bool {
		if !pick(id, o) || !hit() {
			return false
		}
		time.Sleep(late) // of the bubble's time
		x.die(t)
		return false
	}
}

func onPurposeInOrders(t *testing.T) {
	for _, x := range victims() {
		for rank := range runner.Rank(2) {
			of := fmt.Sprintf("%s, at drafter/%d", x.name, rank)
			purpose(t, "commits of two drafters/"+of, func(_ *world, hit func() bool) hooks {
				return hooks{order: atOrder(x, hit, func(id runner.Life, o runner.Order) bool {
					c, ok := o.(runner.Commit)
					return ok && c.Step == 3 && id.Worker.Rank == rank
				})}
			})
			purpose(t, "an image/"+of, func(_ *world, hit func() bool) hooks {
				return hooks{order: atOrder(x, hit, func(id runner.Life, o runner.Order) bool {
					_, ok := o.(runner.Image)
					return ok && id.Worker.Rank == rank
				})}
			})
			purpose(t, "an image whose copy is taken/"+of, func(_ *world, hit func() bool) hooks {
				return hooks{saving: func(t *term, id runner.Life, o runner.Image) {
					if id.Worker.Rank == rank && o.Step > 1 && hit() {
						time.Sleep(late) // of the bubble's time: the steps go on
						x.die(t)
					}
				}}
			})
			purpose(t, "the load of a restore/"+of, func(_ *world, hit func() bool) hooks {
				return hooks{order: atOrder(x, hit, func(id runner.Life, o runner.Order) bool {
					_, ok := o.(runner.Load)
					return ok && id.Worker.Rank == rank
				}), appended: restoreAt(3)}
			})
		}
	}
}

func onPurposeOnDisk(t *testing.T) {
	purpose(t, "a checkpoint that is cut when it is there", func(_ *world, hit func() bool) hooks {
		return hooks{cut: true, appended: func(t *term, r runner.Record) {
			if _, ok := r.(runner.CheckpointRecord); ok && hit() {
				t.set(func() { t.synced = t.size }) // the record survives
				t.kill()
			}
		}}
	})
	for _, x := range victims() {
		purpose(t, "the opening of a checkpoint/"+x.name, func(_ *world, hit func() bool) hooks {
			return hooks{appended: func(t *term, r runner.Record) {
				if _, ok := r.(runner.CheckpointRecord); ok && t.number == 1 {
					t.loop.Stop(true, "down --quick")
					t.excuse[runner.ExitStopped] = "it was asked to"
				}
			}, opening: func(t *term) {
				if hit() {
					x.die(t)
				}
			}}
		})
		for at := int64(piece); at <= drivetest.ImageBytes; at += piece {
			purpose(t, fmt.Sprintf("a checkpoint of which %d bytes are written/%s", at, x.name), func(_ *world, hit func() bool) hooks {
				return hooks{copying: func(t *term, now int64) {
					if now == at && hit() {
						x.die(t)
					}
				}}
			})
		}
	}
	for room := int64(0); room < drivetest.ImageBytes+256; room += 333 {
		purpose(t, fmt.Sprintf("a disk with room for %d bytes", room), func(_ *world, hit func() bool) hooks {
			return hooks{appended: func(t *term, r runner.Record) {
				if c, ok := r.(runner.CommitRecord); ok && c.Step == 1 && hit() {
					t.set(func() { t.room = room })
					t.excuse[runner.ExitFailed] = "the disk was full"
				}
			}}
		})
	}
}

// purpose runs a scene of two drafters with hooks. Each must be hit.
func purpose(t *testing.T, name string, arm func(w *world, hit func() bool) hooks) {
	t.Run(name, func(t *testing.T) {
		s := newScene(1)
		for ; s.drafters != 2 || s.core.ImageEvery > 2 || s.core.Checkpoint != 2 || s.poison != 0; s = newScene(s.seed + aimMask + 1) {
		}
		s.aim, s.plugin, s.core.KeepLast = nil, false, 100
		dir := t.TempDir()
		var want, got outcome
		synctest.Test(t, func(t *testing.T) { want = newWorld(t, s, dir+"/whole").undisturbed() })
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, s, dir+"/struck")
			var hits atomic.Int64
			w.on = arm(w, func() bool { return hits.Add(1) == 1 })
			got = w.undisturbed() // but for the hooks
			if hits.Load() == 0 {
				t.Error("the moment never came")
			}
			if t.Failed() {
				t.Log(w.said())
			}
		})
		if got != want {
			t.Errorf("want the undisturbed run's end\n%+v, got\n%+v", want, got)
		}
	})
}
