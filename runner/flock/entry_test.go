package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// in gives an entry below root whose making fails where it is there already.
func in(root string, made *atomic.Int32) Entry {
	path := filepath.Join(root, "targets", "a")
	return Entry{Path: path, Ready: func() bool { _, err := os.Stat(path); return err == nil },
		Make: func(context.Context) error { made.Add(1); return os.Mkdir(path, 0o700) }}
}

// free says whether nobody holds the entry.
func free(t *testing.T, path string) bool {
	t.Helper()
	l, err := Open(path + Suffix)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ok, err := l.Try(true)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// TestOneMakesAndOthersTake: the second waits, says so, and finds it whole;
// both hold it, and nobody can remove it meanwhile.
func TestOneMakesAndOthersTake(t *testing.T) {
	root, made := t.TempDir(), atomic.Int32{}
	waits, told := make(chan struct{}), atomic.Int32{}
	first, second := in(root, &made), in(root, &made)
	build := first.Make
	inside := make(chan struct{})
	first.Make = func(ctx context.Context) error {
		close(inside)
		<-waits // it is still being made when the other says that it waits
		return build(ctx)
	}
	second.Wait = func() { told.Add(1); close(waits) }
	type answer struct {
		lock *Lock
		err  error
	}
	one := make(chan answer, 1)
	go func() { l, err := first.Hold(t.Context()); one <- answer{l, err} }() // ends with its making; read below
	<-inside
	l, err := second.Hold(t.Context())
	a := <-one
	if err != nil || a.err != nil {
		t.Fatalf("got %v, %v", a.err, err)
	}
	if made.Load() != 1 || told.Load() != 1 {
		t.Errorf("want it made once and the wait told once, got %d, %d", made.Load(), told.Load())
	}
	for _, x := range []*Lock{l, a.lock} {
		if free(t, first.Path) {
			t.Error("in use, and could be removed")
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	if !free(t, first.Path) {
		t.Error("used by nobody, and held")
	}
}

// TestTheNextTries: where the maker fails, the one that waited makes it.
func TestTheNextTries(t *testing.T) {
	root, made := t.TempDir(), atomic.Int32{}
	first, second := in(root, &made), in(root, &made)
	waits, inside := make(chan struct{}), make(chan struct{})
	broken := errors.New("broken")
	first.Make = func(context.Context) error { close(inside); <-waits; return broken }
	second.Wait = func() { close(waits) }
	one := make(chan error, 1)
	go func() { _, err := first.Hold(t.Context()); one <- err }() // ends with its making; read below
	<-inside
	l, err := second.Hold(t.Context())
	if err != nil || made.Load() != 1 {
		t.Fatalf("got %v after %d makings", err, made.Load())
	}
	if err := <-one; !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestHoldEnds(t *testing.T) {
	root, made := t.TempDir(), atomic.Int32{}
	e := in(root, &made)
	l, err := e.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(e.Path); err != nil { // by hand, under one that uses it
		t.Fatal(err)
	}
	if _, err := e.Hold(t.Context()); runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), "other runs are using it") {
		t.Errorf("damaged and in use: got %v", err)
	}
	if ok, err := l.Try(true); err != nil || !ok {
		t.Fatal(ok, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	e.Wait = func() { cancel(errors.New("enough")) }
	if _, err := e.Hold(ctx); runner.KindOf(err) != runner.Canceled || !strings.Contains(err.Error(), "enough") {
		t.Errorf("canceled: got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	e.Make = func(context.Context) error { return nil }
	if _, err := e.Hold(t.Context()); runner.KindOf(err) != runner.Internal {
		t.Errorf("made, and not there: got %v", err)
	}
	if !free(t, e.Path) {
		t.Error("held after an error")
	}
}
