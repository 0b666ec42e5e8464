package drive_test

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// errDead is what the disk says to a supervisor that is no more; nobody hears it.
var errDead = errors.New("the supervisor is dead")

// mortalJournal writes until the supervisor is killed.
type mortalJournal struct{ t *term }

func (j mortalJournal) Append(r runner.Record) error {
	if err := j.append(r); err != nil {
		return err
	}
	if f := j.t.w.on.appended; f != nil {
		f(j.t, r)
	}
	return nil
}

func (j mortalJournal) append(r runner.Record) error {
	t := j.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead {
		return nil
	}
	if t.broken == "append" {
		t.broken = ""
		return unix.ENOSPC
	}
	err := t.file.Append(r)
	t.size = t.length()
	switch r := r.(type) {
	case runner.CommitRecord:
		t.decided = r.Step
	case runner.PlanRecord:
		if r.Plan.Step == t.decided+1 {
			t.next = t.size
		}
	}
	return err
}

func (j mortalJournal) Sync(done func(error)) {
	t := j.t
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.size
	switch {
	case t.dead:
		go done(nil) // ends with the post
	case t.broken == "sync":
		t.broken = ""
		go done(unix.EIO)
	default:
		t.file.Sync(func(err error) {
			time.Sleep(t.syncs()) // of the bubble's time: until then it is not known to be durable
			t.mu.Lock()
			if err == nil && !t.dead {
				t.synced = max(t.synced, at)
			}
			open, step := t.next > 0 && t.next <= t.synced && !t.dead, t.decided+1
			t.mu.Unlock()
			if f := t.w.on.durable; open && f != nil {
				f(t, step)
			}
			done(err)
		})
	}
}

// syncs draws what a sync takes: now and then longer than a step.
func (t *term) syncs() time.Duration {
	t.arms.Lock()
	t.counts["sync"]++
	r := t.random("sync", t.counts["sync"])
	t.arms.Unlock()
	if r.IntN(8) == 0 {
		return upTo(r, 2*late)
	}
	return upTo(r, 3*time.Millisecond)
}

// mortalStore keeps checkpoints until the supervisor is killed. t.mu is held
// but where a copy is under way, so a kill finds a whole or a half one.
type mortalStore struct {
	t     *term
	inner *drivetest.Store
}

func (s mortalStore) Open(name string, want runner.Digest) (drive.Region, error) {
	time.Sleep(upTo(s.t.random("open", name), 6*time.Millisecond)) // of the bubble's time
	if f := s.t.w.on.opening; f != nil {
		f(s.t)
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return s.inner.Open(name, want)
}

func (s mortalStore) Publish(p drive.Publication) (string, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.t.dead {
		return "", errDead
	}
	return s.inner.Publish(p)
}

func (s mortalStore) Remove(name string) error {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.t.dead {
		return errDead
	}
	return s.inner.Remove(name)
}

// mortalDisk copies piece by piece, and runs out of room where it is told to.
type mortalDisk struct{ t *term }

const piece = 512

func (d mortalDisk) Copy(to, from *os.File, size uint64) error {
	for at := int64(0); at < int64(size); at += piece {
		b := make([]byte, min(piece, int64(size)-at))
		if _, err := from.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := d.Write(to, b); err != nil {
			return err
		}
		d.t.mu.Unlock()
		time.Sleep(300 * time.Microsecond) // of the bubble's time
		if f := d.t.w.on.copying; f != nil {
			f(d.t, at+int64(len(b)))
		}
		d.t.mu.Lock()
		if d.t.dead {
			return errDead
		}
	}
	return nil
}

// Write writes what there is room for.
func (d mortalDisk) Write(to *os.File, b []byte) error {
	n := len(b)
	if room := d.t.room; room >= 0 {
		n = int(min(int64(n), room))
		d.t.room -= int64(n)
	}
	if _, err := to.Write(b[:n]); err != nil {
		return err
	}
	if n < len(b) {
		d.t.room = -1 // the next one finds room again
		return unix.ENOSPC
	}
	return nil
}

func (t *term) noImage() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuse {
		t.refuse = false
		return runner.Errorf(runner.Exhausted, "make image: no memory")
	}
	return nil
}

// moody is the built-in scheduler with bad moments.
type moody struct {
	drive.Fixed
	t *term
}

func (m moody) mood() (s string) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	s, m.t.schedule = m.t.schedule, ""
	return s
}

func (m moody) Arrange(ctx context.Context, epoch uint32, count, left int) ([]runner.Sample, error) {
	time.Sleep(2 * time.Millisecond) // of the bubble's time, as below
	switch m.mood() {
	case "late":
		time.Sleep(300 * time.Millisecond)
	case "wrong":
		return []runner.Sample{1, 1, 1}, nil
	case "absent":
		return nil, errors.New("the plugin is gone")
	}
	return m.Fixed.Arrange(ctx, epoch, count, left)
}

func (m moody) Assign(ctx context.Context, row runner.RowPlan, free []runner.Worker) (runner.Worker, error) {
	time.Sleep(time.Millisecond)
	switch m.mood() {
	case "late":
		time.Sleep(300 * time.Millisecond)
	case "wrong":
		return runner.Worker{Role: runner.Target, Rank: 9}, nil
	case "absent":
		return runner.Worker{}, errors.New("the plugin is gone")
	}
	return m.Fixed.Assign(ctx, row, free)
}
