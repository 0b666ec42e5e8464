package drive_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
)

// badJournal fails where it is told to.
type badJournal struct {
	*journal.Writer
	append, sync func(n int) error
	n, syncs     int
	after        []runner.Record // what was appended after the failure
	failed       bool
}

func (j *badJournal) Append(r runner.Record) error {
	if j.failed {
		j.after = append(j.after, r)
	}
	j.n++
	if j.append != nil {
		if err := j.append(j.n); err != nil {
			j.failed = true
			return err
		}
	}
	return j.Writer.Append(r)
}

func (j *badJournal) Sync(done func(error)) {
	j.syncs++
	if j.sync != nil {
		if err := j.sync(j.syncs); err != nil {
			go done(err)
			return
		}
	}
	j.Writer.Sync(done)
}

func TestJournalFailureEndsTheRun(t *testing.T) {
	at := func(k int, err error) func(int) error {
		return func(n int) error {
			if n == k { // once: what comes after would succeed, and leave a hole
				return err
			}
			return nil
		}
	}
	for name, j := range map[string]*badJournal{
		"append": {append: at(20, unix.ENOSPC)},
		"sync":   {sync: at(6, errors.New("input/output error"))},
	} {
		bubble(t, name, func(t *testing.T, r *rig) {
			r.journal = j
			f, _ := r.run()
			if f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "journal") {
				t.Errorf("finish %+v", f)
			}
			if len(j.after) != 0 {
				t.Errorf("written after the hole: %v", j.after)
			}
			r.verify()
			r.journal = nil
			f, v := r.run() // nothing that was confirmed is lost
			r.wholeRun(f, v)
		})
	}
}

func TestMemoryRefused(t *testing.T) {
	refuse := func() error {
		return runner.Errorf(runner.Exhausted, "make memory: want 12288 bytes, 4096 are free").WithHint("free some")
	}
	bubble(t, "arena", func(t *testing.T, r *rig) {
		r.memory.RefuseArena = refuse
		if f, _ := r.run(); f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "4096 are free") {
			t.Errorf("finish %+v", f)
		}
	})
	bubble(t, "one image", func(t *testing.T, r *rig) {
		var first atomic.Int64
		r.memory.RefuseImage = func() error {
			if first.Add(1) == 2 {
				return refuse()
			}
			return nil
		}
		f, v := r.run()
		r.wholeRun(f, v)
		if e := r.event("image failed"); e == nil || e.Hint != "free some" {
			t.Errorf("the event is %+v", e)
		}
	})
	bubble(t, "all images", func(t *testing.T, r *rig) {
		r.memory.RefuseImage = refuse
		if f, v := r.run(); f.Code != runner.ExitFailed || v.Step != 6 {
			t.Errorf("finish %+v at step %d", f, v.Step)
		}
	})
}

// fullDisk has no room while full is set.
type fullDisk struct {
	image.Disk
	full atomic.Bool
	hits atomic.Int64
}

func (d *fullDisk) Copy(to, from *os.File, size uint64) error {
	if d.full.Load() {
		d.hits.Add(1)
		return unix.ENOSPC
	}
	return d.Disk.Copy(to, from, size)
}

func TestFullDiskDoesNotStopTraining(t *testing.T) {
	bubble(t, "one checkpoint", func(t *testing.T, r *rig) {
		d := &fullDisk{}
		d.full.Store(true)
		r.store.Writer = d
		worse := make(chan string, 1)
		r.seen = func(l *drive.Loop, e runner.Event) {
			if e.Name == "checkpoint failed" && d.full.CompareAndSwap(true, false) {
				go func() { // a picture from just after; waited for by the channel
					v, _ := l.View(context.Background())
					worse <- v.Worse["checkpoint"]
				}()
			}
		}
		f, v := r.run()
		r.wholeRun(f, v)
		if got := <-worse; !strings.Contains(got, "no space left") {
			t.Errorf("while the disk was full, worse said %q", got)
		}
		if len(v.Worse) != 0 || d.hits.Load() != 1 {
			t.Errorf("at the end %v is worse, after %d failures", v.Worse, d.hits.Load())
		}
	})
	bubble(t, "to the end", func(t *testing.T, r *rig) {
		d := &fullDisk{}
		d.full.Store(true)
		r.store.Writer = d
		f, v := r.run()
		if f.Code != runner.ExitFailed || v.Step != 6 || v.Worse["checkpoint"] == "" {
			t.Errorf("finish %+v at step %d, worse %v", f, v.Step, v.Worse)
		}
	})
	bubble(t, "a checkpoint that cannot be removed", func(t *testing.T, r *rig) {
		r.config.Core.KeepLast = 1
		r.config.Core.Checkpoint = 1
		r.store.Removed = func() error { return unix.EACCES }
		f, v := r.run()
		r.wholeRun(f, v)
		if v.Worse["checkpoint removal"] == "" {
			t.Errorf("worse %v", v.Worse)
		}
	})
}

// odd is a scheduler of its own mind.
type odd struct {
	drive.Scheduler
	arrange func(ctx context.Context, epoch uint32, count, left int) ([]runner.Sample, error)
	assign  func(free []runner.Worker) (runner.Worker, error)
}

func (odd) Name() string { return "odd" }

func (o odd) Arrange(ctx context.Context, epoch uint32, count, left int) ([]runner.Sample, error) {
	return o.arrange(ctx, epoch, count, left)
}

func (o odd) Assign(_ context.Context, _ runner.RowPlan, free []runner.Worker) (runner.Worker, error) {
	return o.assign(free)
}

func TestScheduler(t *testing.T) {
	type arrange = func(context.Context, uint32, int, int) ([]runner.Sample, error)
	for _, c := range []struct {
		name    string
		arrange arrange
		refused string // part of what Worse says; empty: nothing was refused
	}{
		{"backwards", nil, ""},
		{"an error", func(context.Context, uint32, int, int) ([]runner.Sample, error) { return nil, errors.New("no idea") }, "no idea"},
		{"too few", func(context.Context, uint32, int, int) ([]runner.Sample, error) { return []runner.Sample{1}, nil }, "samples, got 1"},
		{"none that is there", func(_ context.Context, _ uint32, n, _ int) ([]runner.Sample, error) {
			return slices.Repeat([]runner.Sample{99}, n), nil
		}, "sample 99 is not in the index"},
		{"one that is never planned", func(_ context.Context, _ uint32, n, left int) ([]runner.Sample, error) {
			return slices.Repeat([]runner.Sample{7}, min(n, left)), nil
		}, "sample 7"},
		{"one twice", func(_ context.Context, _ uint32, n, left int) ([]runner.Sample, error) {
			return slices.Repeat([]runner.Sample{1}, min(n, left)), nil
		}, "arranged before"},
		{"left to the built-in", func(context.Context, uint32, int, int) ([]runner.Sample, error) {
			return nil, fmt.Errorf("away: %w", drive.ErrDeclined)
		}, ""},
		{"too slow", func(ctx context.Context, _ uint32, _, _ int) ([]runner.Sample, error) {
			time.Sleep(10 * time.Second) // it does not look at its context
			return nil, nil
		}, "no answer within 2s"},
	} {
		bubble(t, c.name, func(t *testing.T, r *rig) {
			o := odd{arrange: c.arrange}
			if c.arrange == nil {
				o.arrange = func(_ context.Context, _ uint32, n, left int) ([]runner.Sample, error) {
					var all []runner.Sample
					for s := 47; s >= 0; s-- {
						if s != 7 {
							all = append(all, runner.Sample(s))
						}
					}
					return all[len(all)-left:][:min(n, left)], nil
				}
			}
			r.config.Scheduler = o
			f, v := r.run()
			r.wholeRun(f, v)
			if (v.Worse["scheduler"] != "") != (c.refused != "") || !strings.Contains(v.Worse["scheduler"], c.refused) || v.Scheduler != "odd" {
				t.Errorf("scheduler %q, worse %v", v.Scheduler, v.Worse)
			}
			time.Sleep(time.Minute) // a call that was left behind ends
		})
	}
}

func TestAssign(t *testing.T) {
	second := runner.Worker{Role: runner.Target, Rank: 1}
	for name, c := range map[string]struct {
		assign  func(free []runner.Worker) (runner.Worker, error)
		refused bool
	}{
		"the last":          {func(free []runner.Worker) (runner.Worker, error) { return free[len(free)-1], nil }, false},
		"one that is not":   {func([]runner.Worker) (runner.Worker, error) { return runner.Worker{Role: runner.Target, Rank: 9}, nil }, true},
		"none, it declines": {func([]runner.Worker) (runner.Worker, error) { return runner.Worker{}, drive.ErrDeclined }, false},
		"an error":          {func([]runner.Worker) (runner.Worker, error) { return runner.Worker{}, errors.New("no idea") }, true},
	} {
		bubble(t, name, func(t *testing.T, r *rig) {
			r.config.Core.AskScheduler = true
			r.config.Core.Workers = slices.Insert(r.config.Core.Workers, 1, r.config.Core.Workers[0])
			r.config.Core.Workers[1].Worker = second
			fixed := drive.Fixed{Seed: 3, Samples: samplesBut7(), Draws: 1}
			slow := func(ctx context.Context, epoch uint32, count, left int) ([]runner.Sample, error) {
				time.Sleep(1500 * time.Millisecond) // of the bubble: both targets are ready when the first rows are planned
				return fixed.Arrange(ctx, epoch, count, left)
			}
			r.config.Scheduler = odd{arrange: slow, assign: c.assign}
			f, v := r.run()
			r.wholeRun(f, v)
			if (v.Worse["scheduler"] != "") != c.refused {
				t.Errorf("worse %v", v.Worse)
			}
			if name == "the last" && v.Arenas[1].HandOffs == 0 {
				t.Errorf("the second target made nothing: %+v", v.Arenas)
			}
		})
	}
}

func samplesBut7() (all []runner.Sample) {
	for s := range runner.Sample(48) {
		if s != 7 {
			all = append(all, s)
		}
	}
	return all
}

// TestI9_FloodIsBounded: a worker that answers without end is killed, and what
// it sent beyond what the loop takes stays in its lane.
func TestI9_FloodIsBounded(t *testing.T) {
	bubble(t, "replies", func(t *testing.T, r *rig) {
		r.atStep(2, (*drivetest.Process).Flood, drafter1)
		f, v := r.run()
		r.wholeRun(f, v)
		if len(v.Failures) != 1 || v.Failures[0].Cause != runner.CauseProtocol {
			t.Errorf("failures %+v", v.Failures)
		}
	})
}

// TestSchedulerGoneAtResume: the built-in goes on from another's order without
// a word of refusal.
func TestSchedulerGoneAtResume(t *testing.T) {
	bubble(t, "resume", func(t *testing.T, r *rig) {
		fixed := drive.Fixed{Seed: 3, Samples: samplesBut7(), Draws: 1}
		r.config.Scheduler = odd{arrange: fixed.Arrange}
		r.config.Core.Steps, r.config.Core.HorizonSteps = 1, 1
		if f, _ := r.run(); f.Code != runner.ExitDone {
			t.Fatalf("finish %+v", f)
		}
		r.config.Scheduler, r.config.Core.Steps = nil, 6
		f, v := r.run()
		if f.Code != runner.ExitDone || v.Worse["scheduler"] != "" {
			t.Errorf("finish %+v, worse %v", f, v.Worse)
		}
		r.verify()
	})
}

// picky takes from the middle of the pool.
type picky struct {
	odd
	seen *[]int // sizes of the pools
}

func (p picky) ArrangeOf(_ context.Context, q core.Arrange, pool []runner.Sample) ([]runner.Sample, error) {
	count, left := q.Count, q.Left
	*p.seen = append(*p.seen, len(pool))
	if len(pool) != left {
		return nil, fmt.Errorf("want a pool of %d, got %d", left, len(pool))
	}
	return pool[(len(pool)-count)/2:][:count], nil
}

// TestPoolIsWhatIsLeft: whatever was taken before, also in an earlier life of
// the run, the pool holds the rest, and any choice from it makes a whole epoch.
func TestPoolIsWhatIsLeft(t *testing.T) {
	bubble(t, "pool", func(t *testing.T, r *rig) {
		var seen []int
		r.config.Scheduler = picky{seen: &seen}
		r.config.Core.Steps = 2
		if f, v := r.run(); f.Code != runner.ExitDone || v.Worse["scheduler"] != "" {
			t.Fatalf("finish %+v, worse %v", f, v.Worse)
		}
		before := len(seen)
		r.config.Core.Steps = 6
		f, v := r.run()
		r.wholeRun(f, v)
		if v.Worse["scheduler"] != "" || before == 0 || len(seen) == before || seen[0] != 47 || seen[1] >= 47 {
			t.Errorf("pools %v, %d before the resume, worse %v", seen, before, v.Worse)
		}
	})
}
