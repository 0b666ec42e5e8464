package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// How often a lock that another run holds is tried, and how many times running
// it must be found held by users only, before a damaged entry is given up.
const (
	pause = 100 * time.Millisecond
	tries = 5
)

// Entry is a directory of a cache that runs share, and that one of them makes.
type Entry struct {
	Path  string
	Ready func() bool                     // everything that is wanted of it is there
	Make  func(ctx context.Context) error // makes what is not; called with the entry held by this process alone
	Wait  func()                          // another run is making it; called once at most, may be nil
}

// Hold gives the entry, whole and held against removal until Close, after
// making it where it is not. Of runs that want it at once one makes it, and the
// others wait and take what it published; where it fails, the next one tries.
func (e Entry) Hold(ctx context.Context) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(e.Path), 0o755); err != nil {
		return nil, runner.Errorf(runner.Unavailable, "make cache: %w", err).WithHint("set XDG_CACHE_HOME to a directory that can be written")
	}
	l, err := Open(e.Path + Suffix)
	if err != nil {
		return nil, err
	}
	if err := e.hold(ctx, l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// hold ends with a shared hold on an entry that was whole under it: turning an
// exclusive hold into a shared one lets others in between.
func (e Entry) hold(ctx context.Context, l *Lock) error {
	w := waiting{entry: e, lock: l, tick: time.NewTicker(pause)}
	defer w.tick.Stop()
	for {
		if e.Ready() {
			shared, err := l.Try(false)
			if err != nil || shared && e.Ready() {
				return err
			}
		}
		alone, err := l.Try(true)
		switch {
		case err != nil:
		case !alone:
			err = w.wait(ctx)
		case !e.Ready(): // nor did another run make it meanwhile
			err = e.build(ctx)
		}
		if err != nil {
			return err
		}
	}
}

func (e Entry) build(ctx context.Context) error {
	if err := e.Make(ctx); err != nil {
		return err
	}
	if !e.Ready() {
		return runner.Errorf(runner.Internal, "make %s: it is not whole after it was made", e.Path)
	}
	return nil
}

// waiting is for another run that holds the lock.
type waiting struct {
	entry Entry
	lock  *Lock
	tick  *time.Ticker
	said  bool
	users int // how many times running it was held by users only
}

// wait lets some time pass. An entry that is not whole while others only use it
// would never be free to be made: an error.
func (w *waiting) wait(ctx context.Context) error {
	shared, err := w.lock.Try(false) // not to be had beside a maker
	if err != nil {
		return err
	}
	if err := w.lock.Drop(); err != nil {
		return runner.Errorf(runner.Unavailable, "unlock %s: %w", w.entry.Path, err)
	}
	if w.users++; !shared || w.entry.Ready() {
		w.users = 0
	}
	if w.users == tries {
		return runner.Errorf(runner.Unavailable, "make %s: it is damaged, and other runs are using it", w.entry.Path).
			WithHint("stop the other runs (`dflash-runner down`), then try again")
	}
	if !shared && !w.said && w.entry.Wait != nil {
		w.said = true
		w.entry.Wait()
	}
	select {
	case <-w.tick.C:
		return nil
	case <-ctx.Done():
		return runner.Errorf(runner.Canceled, "wait for %s: %w", w.entry.Path, context.Cause(ctx))
	}
}
