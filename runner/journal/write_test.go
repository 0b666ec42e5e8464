package journal

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// A crash may cut the newest segment anywhere: what was whole before is there,
// the rest is cut, and the journal goes on.
func TestOpenCutsTornTail(t *testing.T) {
	h := whole(t)
	b := readFile(t, filepath.Join(write(t, h.out, rollBytes), segmentName(1)))
	at := offsets(t, b)
	for _, cut := range []int{headerBytes, at[1] - 1, at[1], at[1] + 3, at[4] + frameBytes, at[len(at)-2] + 20, len(b) - 1} {
		dir := oneSegment(t, b[:cut])
		n := 0
		w, s, err := Open(dir, func(Entry) error { n++; return nil })
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		want := 0
		for want+1 < len(at) && at[want+1] <= cut {
			want++
		}
		if n != want || s.Records != uint64(want) || (s.Torn != nil) == slices.Contains(at, cut) {
			t.Errorf("cut at %d: read %d records, want %d, torn %+v", cut, n, want, s.Torn)
		}
		for _, r := range h.out[want:] {
			if err := w.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, _, err := load(dir); err != nil || len(got) != len(h.out) {
			t.Errorf("cut at %d and continued: read %d of %d records: %v", cut, len(got), len(h.out), err)
		}
	}
	for _, cut := range []int{0, 5, headerBytes - 1} { // a run that died as it began
		if _, _, err := Open(oneSegment(t, b[:cut]), nil); runner.KindOf(err) != runner.NotFound {
			t.Errorf("cut at %d: got %v", cut, err)
		}
	}
}

// Damage to what a later record proves to have been durable is no torn tail.
func TestOpenRefusesDamage(t *testing.T) {
	h := whole(t)
	b := readFile(t, filepath.Join(write(t, h.out, rollBytes), segmentName(1)))
	at := offsets(t, b)
	for _, i := range []int{at[0], at[3] + 1, at[6] + frameBytes + bodyBytes} { // a length, too
		changed := slices.Clone(b)
		changed[i] ^= 0x40
		dir := oneSegment(t, changed)
		_, _, err := Open(dir, func(Entry) error { return nil })
		if runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), "000001.journal: at byte ") || runner.HintOf(err) == "" {
			t.Errorf("byte %d changed: got %v", i, err)
		}
		if !slices.Equal(readFile(t, filepath.Join(dir, segmentName(1))), changed) {
			t.Errorf("byte %d changed: the file was touched", i)
		}
	}
	// The same behind everything durable: cut.
	tail := slices.Concat(b, appendFrame(nil, uint64(len(at)), 0, h.out[0]), appendFrame(nil, uint64(len(at)+1), 0, h.out[0]))
	tail[len(b)+frameBytes+3] ^= 1
	if _, s, err := load(oneSegment(t, tail)); err != nil || s.Torn == nil || s.Torn.Offset != int64(len(b)) {
		t.Errorf("torn in front of a record that was never durable: %+v, %v", s, err)
	}
}

func TestSegments(t *testing.T) {
	h := whole(t)
	dir := write(t, h.out, 600)
	got, s, err := load(dir)
	if err != nil || len(got) != len(h.out) || s.Segments < 5 {
		t.Fatalf("read %d records in %d segments: %v", len(got), s.Segments, err)
	}
	for i, e := range got {
		if e.Number != uint64(i+1) || !reflect.DeepEqual(e.Record, h.out[i]) {
			t.Fatalf("record %d: got %+v", i+1, e)
		}
	}
	if _, err := Verify(dir, h.facts); err != nil {
		t.Error(err)
	}
	w, _, err := Open(dir, func(Entry) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	w.roll = 600
	for range 9 {
		if err := w.Append(runner.StartRecord{Lineage: 3}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, after, err := load(dir); err != nil || after.Records != s.Records+9 {
		t.Fatalf("continued: %+v, %v", after, err)
	}
	cutTail(t, dir)
	damageSegments(t, dir)
}

// cutTail cuts an older segment, which is not the place of a torn tail.
func cutTail(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, segmentName(2))
	b := readFile(t, path)
	if err := os.WriteFile(path, b[:len(b)-1], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := load(dir); err == nil || !strings.Contains(err.Error(), segmentName(2)+": at byte ") {
		t.Errorf("an older segment cut: got %v", err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// damageSegments leaves whole records out, moves and removes segments.
func damageSegments(t *testing.T, dir string) {
	t.Helper()
	one, two := filepath.Join(dir, segmentName(1)), filepath.Join(dir, segmentName(2))
	b := readFile(t, one)
	at := offsets(t, b)
	if err := os.WriteFile(one, b[:at[len(at)-2]], 0o644); err != nil { // its last record, whole
		t.Fatal(err)
	}
	if _, _, err := load(dir); err == nil || !strings.Contains(err.Error(), segmentName(2)+": at byte 0: want digest") {
		t.Errorf("a record left out at a segment's end: got %v", err)
	}
	if err := os.Rename(two, one); err != nil {
		t.Fatal(err)
	}
	if _, _, err := load(dir); err == nil || !strings.Contains(err.Error(), "want segment 000002.journal, got 000003.journal") {
		t.Errorf("a segment missing: got %v", err)
	}
}

func TestOneWriter(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, RunID{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(dir, nil); runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), "another process is writing it") {
		t.Errorf("second writer: got %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(runner.StartRecord{}); err == nil {
		t.Error("appended to a closed journal")
	}
	if _, err := Create(dir, RunID{}); runner.KindOf(err) != runner.Invalid {
		t.Errorf("made over another: got %v", err)
	}
}

// badDisk fails as told.
type badDisk struct {
	file
	mu    sync.Mutex // guards below
	room  int        // bytes it still takes; -1: any number
	fsync error
	cut   error
}

func (d *badDisk) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.room < 0 || len(b) <= d.room {
		return d.file.Write(b)
	}
	n, _ := d.file.Write(b[:d.room])
	return n, unix.ENOSPC
}

func (d *badDisk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.fsync, d.file.Sync())
}

func (d *badDisk) Truncate(n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.cut, d.file.Truncate(n))
}

func (d *badDisk) set(f func(*badDisk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

func onBadDisk(t *testing.T) (*Writer, *badDisk, string) {
	t.Helper()
	dir := t.TempDir()
	w, err := Create(dir, RunID{})
	if err != nil {
		t.Fatal(err)
	}
	d := &badDisk{file: w.f, room: -1}
	w.f = d
	return w, d, dir
}

// A full disk, at any byte of a record: nothing of it stays, and when there is
// room again the journal goes on.
func TestAppendDiskFull(t *testing.T) {
	w, d, dir := onBadDisk(t)
	r := runner.RestoreRecord{Step: 4, Lineage: 2}
	size := len(appendFrame(nil, 1, 0, r))
	for room := range size {
		d.set(func(d *badDisk) { d.room = room })
		err := w.Append(r)
		if runner.KindOf(err) != runner.Exhausted || runner.HintOf(err) == "" {
			t.Fatalf("room for %d of %d bytes: got %v", room, size, err)
		}
		if info, err := os.Stat(filepath.Join(dir, segmentName(1))); err != nil || info.Size() != int64(headerBytes+room*size) {
			t.Fatalf("room for %d bytes: the segment has %d (%v)", room, info.Size(), err)
		}
		d.set(func(d *badDisk) { d.room = -1 })
		if err := w.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, s, err := load(dir); err != nil || len(got) != size || s.Torn != nil {
		t.Errorf("read %d of %d records, %v", len(got), size, err)
	}
}

func TestAppendCannotCut(t *testing.T) {
	w, d, _ := onBadDisk(t)
	d.set(func(d *badDisk) { d.room, d.cut = 3, errors.New("no") })
	if err := w.Append(runner.StartRecord{}); runner.KindOf(err) != runner.Fatal {
		t.Errorf("got %v", err)
	}
	d.set(func(d *badDisk) { d.room = -1 })
	if err := w.Append(runner.StartRecord{}); runner.KindOf(err) != runner.Fatal {
		t.Errorf("appended behind half a record: %v", err)
	}
	if err := w.Close(); runner.KindOf(err) != runner.Fatal {
		t.Errorf("close: got %v", err)
	}
}

// A failed fsync is final: a second one would report success over what the
// first one lost.
func TestSyncFails(t *testing.T) {
	w, d, _ := onBadDisk(t)
	if err := w.Append(runner.StartRecord{}); err != nil {
		t.Fatal(err)
	}
	d.set(func(d *badDisk) { d.fsync = unix.EIO })
	done := make(chan error)
	w.Sync(func(err error) { done <- err })
	if err := <-done; runner.KindOf(err) != runner.Fatal || !errors.Is(err, unix.EIO) {
		t.Errorf("got %v", err)
	}
	d.set(func(d *badDisk) { d.fsync = nil })
	w.Sync(func(err error) { done <- err })
	if err := <-done; runner.KindOf(err) != runner.Fatal {
		t.Errorf("second sync: got %v", err)
	}
	if err := w.Append(runner.StartRecord{}); runner.KindOf(err) != runner.Fatal {
		t.Errorf("append: got %v", err)
	}
	if err := w.Close(); err == nil {
		t.Error("closed without an error")
	}
}

// Appending and rolling go on beside syncs; each done comes once, in order,
// and only when its records can be read.
func TestSyncBesideAppend(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, RunID{})
	if err != nil {
		t.Fatal(err)
	}
	w.roll = 2000
	var order []int
	var wg sync.WaitGroup
	for i := range 200 {
		if err := w.Append(runner.RestoreRecord{Step: runner.Step(i)}); err != nil {
			t.Fatal(err)
		}
		wg.Add(1)
		w.Sync(func(err error) {
			defer wg.Done()
			w.mu.Lock()
			defer w.mu.Unlock()
			if err != nil || w.durable < uint64(i+1) {
				t.Errorf("record %d: durable up to %d, %v", i+1, w.durable, err)
			}
			order = append(order, i)
		})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if len(order) != 200 || !slices.IsSorted(order) {
		t.Errorf("done called in the order %d", order)
	}
	if got, s, err := load(dir); err != nil || len(got) != 200 || s.Segments < 5 {
		t.Errorf("read %d records: %v", len(got), err)
	}
}
