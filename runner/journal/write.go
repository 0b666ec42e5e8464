package journal

import (
	"crypto/sha256"
	"errors"
	"hash"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// rollBytes closes a segment that has grown past it.
const rollBytes = maxSegment / 4

// file is what the writer needs of a segment's file; tests put a disk that
// fails in its place.
type file interface {
	Write(b []byte) (int, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

// Writer is the one writer of a journal. Append and Close are for one
// goroutine; Sync may be called from it too and does not wait.
type Writer struct {
	dir  string
	run  RunID
	lock *os.File
	roll int64 // segment size that closes it
	open func(path string) (file, error)

	segment uint32
	before  runner.Digest
	sum     hash.Hash // of the segment so far
	bytes   int64
	buffer  []byte

	mu      sync.Mutex // guards below
	f       file
	number  uint64 // of the last record appended
	durable uint64 // newest number known to be on the disk
	broken  error  // no more can be written
	waiting []waiter
	syncing bool
	idle    sync.Cond // syncing became false
}

// waiter is told once a record is durable.
type waiter struct {
	number uint64
	done   func(error)
}

// Create makes an empty journal in dir, which must hold none.
func Create(dir string, run RunID) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, runner.Errorf(runner.Unavailable, "make journal: %w", err)
	}
	w, err := newWriter(dir)
	if err != nil {
		return nil, err
	}
	w.run = run
	if _, err := segments(dir); err == nil {
		return nil, errors.Join(runner.Errorf(runner.Invalid, "make journal %s: there is one already", dir), w.lock.Close())
	}
	if err := w.next(); err != nil {
		return nil, errors.Join(err, w.lock.Close())
	}
	return w, nil
}

// Open goes on with a journal: it gives every record to visit, cuts a torn
// tail, and appends after it.
func Open(dir string, visit func(Entry) error) (*Writer, *Scanned, error) {
	w, err := newWriter(dir)
	if err != nil {
		return nil, nil, err
	}
	s, err := Scan(dir, visit)
	if err == nil {
		err = w.resume(s)
	}
	if err != nil {
		return nil, nil, errors.Join(err, w.lock.Close())
	}
	return w, s, nil
}

// newWriter takes the journal's lock.
func newWriter(dir string) (*Writer, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "open journal: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, runner.Errorf(runner.Unavailable, "lock journal %s: another process is writing it: %w", dir, err)
	}
	w := &Writer{dir: dir, lock: f, roll: rollBytes, open: openAppend}
	w.idle.L = &w.mu
	return w, nil
}

func openAppend(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// resume cuts the torn tail and makes what is left durable.
func (w *Writer) resume(s *Scanned) error {
	w.run, w.number, w.durable = s.Run, s.Records, s.Records
	if s.headless != "" {
		if err := os.Remove(s.headless); err != nil {
			return runner.Errorf(runner.Unavailable, "cut journal: %w", err)
		}
	}
	if s.Segments == 0 {
		return runner.Errorf(runner.NotFound, "open journal %s: it ends before its first record", w.dir).
			WithHint("the run ended as it began; start a new one")
	}
	w.segment, w.before, w.bytes = s.last.number, s.last.digest, s.last.bytes
	w.sum = sha256.New()
	w.sum.Write(s.last.sum)
	path := filepath.Join(w.dir, segmentName(int(w.segment)))
	f, err := w.open(path)
	if err != nil {
		return runner.Errorf(runner.Unavailable, "open journal: %w", err)
	}
	w.f = f
	if s.Torn != nil {
		err = f.Truncate(w.bytes)
	}
	if err = errors.Join(err, f.Sync(), syncDir(w.dir)); err != nil {
		return errors.Join(runner.Errorf(runner.Unavailable, "cut journal %s: %w", path, err), f.Close())
	}
	return nil
}

// next closes the open segment and begins another. It waits for the disk.
func (w *Writer) next() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.syncing {
		w.idle.Wait()
	}
	if w.f != nil {
		if err := errors.Join(w.f.Sync(), w.f.Close()); err != nil {
			return w.breakDown("close segment", err)
		}
		w.before = runner.Digest(w.sum.Sum(nil))
		w.reach(w.number)
	}
	if w.segment++; w.segment >= maxSegments {
		return w.breakDown("begin segment", errors.New("too many segments"))
	}
	f, err := w.open(filepath.Join(w.dir, segmentName(int(w.segment))))
	if err != nil {
		return w.breakDown("begin segment", err)
	}
	b := header{segment: w.segment, run: w.run, before: w.before}.append(nil)
	if _, err = f.Write(b); err == nil {
		err = errors.Join(f.Sync(), syncDir(w.dir))
	}
	if err != nil {
		return errors.Join(w.breakDown("begin segment", err), f.Close())
	}
	w.f, w.bytes, w.sum = f, int64(len(b)), sha256.New()
	w.sum.Write(b)
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Append writes a record and does not wait for the disk. A record that did not
// fit on the disk leaves no trace, and Append may be tried again; any other
// failure is final.
func (w *Writer) Append(r runner.Record) error {
	w.mu.Lock()
	number, durable, broken := w.number+1, w.durable, w.broken
	w.mu.Unlock()
	if broken != nil {
		return broken
	}
	if w.bytes >= w.roll {
		if err := w.next(); err != nil {
			return err
		}
	}
	w.buffer = appendFrame(w.buffer[:0], number, durable, r)
	if len(w.buffer)-frameBytes > maxBody {
		return runner.Errorf(runner.Invalid, "append %s: want at most %d bytes, got %d", runner.RecordType(r), maxBody, len(w.buffer))
	}
	if _, err := w.f.Write(w.buffer); err != nil {
		return w.takeBack(r, err)
	}
	w.bytes += int64(len(w.buffer))
	w.sum.Write(w.buffer)
	w.mu.Lock()
	w.number = number
	w.mu.Unlock()
	return nil
}

// takeBack cuts what a failed write left.
func (w *Writer) takeBack(r runner.Record, err error) error {
	kind := runner.Unavailable
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		kind = runner.Exhausted
	}
	e := runner.Errorf(kind, "append %s: %w", runner.RecordType(r), err)
	if cut := w.f.Truncate(w.bytes); cut != nil || kind != runner.Exhausted {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.breakDown("append", errors.Join(err, cut))
	}
	return e.WithHint("free some space on the disk of the run's directory")
}

// breakDown makes a failure final: what is on the disk is not known any more,
// and only reading it again can tell. w.mu is held.
func (w *Writer) breakDown(verb string, err error) error {
	if w.broken == nil {
		w.broken = runner.Errorf(runner.Fatal, "%s: journal %s: %w", verb, w.dir, err).
			WithHint("look at the disk, then resume the run: nothing that was confirmed is lost")
	}
	return w.broken
}
