package pyenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/flock"
)

// Spec says which environment is wanted.
type Spec struct {
	CacheDir    string // "" is DefaultCacheDir()
	Name        string // "worker", "compat": the first part of the directory's name
	Lock        []byte // requirements with hashes
	NeedBytes   uint64 // free disk space that making it takes; 0 is not checked
	Interpreter string // an existing Python that has the packages: nothing is made
	Python      string // the Python to make it from; "" searches the path
}

// Worker is the environment of workers, jobs and the tests.
func Worker(cacheDir, interpreter string) Spec {
	return Spec{CacheDir: cacheDir, Name: "worker", Lock: python.Requirements, NeedBytes: 8 << 30, Interpreter: interpreter}
}

// Compat is the environment in which the public `dflash` package loads an export.
func Compat(cacheDir string) Spec {
	return Spec{CacheDir: cacheDir, Name: "compat", Lock: python.CompatRequirements, NeedBytes: 8 << 30}
}

// Env is an environment that is ready. It stays locked against being made anew
// until Close, or the end of the process.
type Env struct {
	Dir         string            // the environment; sys.prefix of an existing one
	Python      string            // its interpreter, absolute
	Fingerprint string            // of everything its contents follow from
	Version     string            // of Python
	Packages    map[string]string // normalised name to version
	Made        bool              // by this call
	Warnings    []string

	lock *flock.Lock
}

// Close lets others make the environment anew.
func (e *Env) Close() error {
	if e.lock == nil {
		return nil
	}
	return e.lock.Close()
}

// Progress is one thing that happened while an environment was made.
type Progress struct {
	Stage      string // "check", "wait", "python", "venv", "installer", "packages", "done"
	Message    string
	DoneBytes  uint64 // downloaded, of packages large enough to be announced
	TotalBytes uint64 // announced so far
}

// DefaultCacheDir is where this program keeps what can be made again.
func DefaultCacheDir() (string, error) {
	d, err := os.UserCacheDir()
	if err != nil {
		return "", runner.Errorf(runner.Unavailable, "find cache directory: %w", err).WithHint("set HOME or XDG_CACHE_HOME")
	}
	return filepath.Join(d, "dflash-runner"), nil
}

// Ensure gives the environment, after making or repairing it where it has to.
// progress is called from one goroutine at a time, and not after Ensure has
// returned; it may be nil. Runs at the same time make it once: the others wait.
func Ensure(ctx context.Context, s Spec, progress func(Progress)) (*Env, error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	if s.Interpreter != "" {
		return useExisting(ctx, s)
	}
	m, err := newMaker(s, progress)
	if err != nil {
		return nil, err
	}
	lock, err := flock.Open(m.dir + flock.Suffix)
	if err != nil {
		return nil, err
	}
	e, err := m.ensure(ctx, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return e, nil
}

// How often a lock that another run holds is tried, and how many times a lock
// must be found held by users only, before a damaged environment is given up.
const (
	lockPause = 100 * time.Millisecond
	lockTries = 5
)

// ensure verifies, and makes what does not verify under the exclusive lock.
func (m *maker) ensure(ctx context.Context, lock *flock.Lock) (*Env, error) {
	w := waiting{m: m, lock: lock, tick: time.NewTicker(lockPause)}
	defer w.tick.Stop()
	made := false
	for {
		got, problem, err := m.claim(lock)
		if err != nil {
			return nil, err
		}
		if got != nil {
			got.Made = made
			return got, nil
		}
		exclusive, err := lock.Try(true)
		if err == nil && !exclusive {
			err = w.wait(ctx, problem)
		}
		if err != nil {
			return nil, err
		}
		if !exclusive {
			continue
		}
		if _, problem = verify(m.dir, m.lockSum, m.installerSum); problem != "" {
			if err := m.make(ctx, problem); err != nil {
				return nil, err
			}
			made = true
		} // claiming it turns the lock into a shared one
	}
}

// waiting is for another run that holds the lock.
type waiting struct {
	m     *maker
	lock  *flock.Lock
	tick  *time.Ticker
	said  bool
	users int // how many times running it was held by users only
}

// wait lets some time pass, while another run makes the environment. One that
// must be made anew while others only use it would never be free: an error.
func (w *waiting) wait(ctx context.Context, problem string) error {
	shared, err := w.lock.Try(false) // not to be had beside a maker
	if err != nil {
		return err
	}
	if err := w.lock.Drop(); err != nil {
		return runner.Errorf(runner.Unavailable, "unlock %s: %w", w.m.dir, err)
	}
	if w.users++; !shared {
		w.users = 0
	}
	if w.users == lockTries {
		return runner.Errorf(runner.Unavailable, "repair environment %s: it is %s, and other runs are using it", w.m.dir, problem).
			WithHint("stop the other runs (`dflash-runner down`), then try again")
	}
	if !shared && !w.said {
		w.said = true
		w.m.progress(Progress{Stage: "wait", Message: "another run is making " + w.m.dir + "; waiting for it"})
	}
	select {
	case <-w.tick.C:
		return nil
	case <-ctx.Done():
		return runner.Errorf(runner.Canceled, "wait for environment %s: %w", w.m.dir, context.Cause(ctx))
	}
}

// claim gives the environment under a shared lock, if it verifies under it;
// otherwise it says what is wrong.
func (m *maker) claim(lock *flock.Lock) (*Env, string, error) {
	if _, problem := verify(m.dir, m.lockSum, m.installerSum); problem != "" {
		return nil, problem, nil
	}
	shared, err := lock.Try(false)
	if err != nil || !shared {
		return nil, "being made", err
	}
	s, problem := verify(m.dir, m.lockSum, m.installerSum)
	if problem != "" {
		return nil, problem, nil
	}
	return &Env{
		Dir: m.dir, Python: filepath.Join(m.dir, "bin", "python"), Fingerprint: s.Fingerprint, Version: s.Python, Packages: s.versions(), lock: lock,
	}, "", nil
}
