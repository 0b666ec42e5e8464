package pyenv

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// fileLock is a flock on a file of its own. The kernel drops it when the
// process dies.
type fileLock struct{ f *os.File }

// openLock opens, or makes, the lock file without locking it.
func openLock(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "open lock: %w", err)
	}
	return &fileLock{f}, nil
}

// try takes the lock, shared or not, without waiting; ok is false when another
// process holds it in a way that excludes ours. An earlier hold is given up.
func (l *fileLock) try(exclusive bool) (ok bool, err error) {
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

// drop gives up the hold and keeps the file open.
func (l *fileLock) drop() error { return unix.Flock(int(l.f.Fd()), unix.LOCK_UN) }

// close drops the lock.
func (l *fileLock) close() error { return l.f.Close() }
