package flock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Suffix is what a thing's lock file is named after it with.
const Suffix = ".lock"

// Lock is a flock on a file of its own.
type Lock struct{ f *os.File }

// Open opens, or makes, the lock file without locking it.
func Open(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "open lock: %w", err)
	}
	return &Lock{f}, nil
}

// Try takes the lock, shared or not, without waiting; ok is false when another
// process holds it in a way that excludes ours. An earlier hold is given up.
func (l *Lock) Try(exclusive bool) (ok bool, err error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err = unix.Flock(int(l.f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, runner.Errorf(runner.Unavailable, "lock %s: %w", l.f.Name(), err)
		}
	}
}

// Drop gives up the hold and keeps the file open.
func (l *Lock) Drop() error { return unix.Flock(int(l.f.Fd()), unix.LOCK_UN) }

// Close drops the lock.
func (l *Lock) Close() error { return l.f.Close() }
