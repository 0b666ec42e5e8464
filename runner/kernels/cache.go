package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/flock"
	"github.com/dflash-runner/dflash-runner/runner/seal"
)

// Kind is the folder below the user's cache.
const Kind = "kernels"

// factsFile says in an entry what it is named after.
const factsFile = "facts.json"

// Facts are what compiled code depends on: an entry's name is their digest.
type Facts struct {
	Torch  string   `json:"torch"`
	Triton string   `json:"triton"`
	GPUs   []string `json:"gpus"` // names, without repeats
	Driver string   `json:"driver"`
	Shapes any      `json:"shapes"` // everything that the worker's shapes follow from
}

// Name gives the entry's name.
func (f Facts) Name() (string, error) {
	text, err := f.text()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16], nil
}

func (f Facts) text() ([]byte, error) {
	for _, x := range []struct{ what, is string }{{"torch", f.Torch}, {"triton", f.Triton}, {"driver", f.Driver}} {
		if x.is == "" {
			return nil, runner.Errorf(runner.NotFound, "name kernel cache: %s: want its version, got none", x.what).
				WithHint("`dflash-runner doctor` says what is installed")
		}
	}
	if len(f.GPUs) == 0 {
		return nil, runner.Errorf(runner.NotFound, "name kernel cache: want a GPU's name, got none")
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "name kernel cache: %w", err)
	}
	return append(text, '\n'), nil
}

// warmUps is what the lock of an entry's warm-ups is named with, behind the
// entry's own name: shared by every run with a warm-up inside, exclusive to the
// one that compares or seals the entry.
const warmUps = ".warmup" + flock.Suffix

// How often a lock is tried that another run holds while it compares or seals
// the entry, and how long: it reads some hundred files.
const (
	pause   = 50 * time.Millisecond
	longest = 20 * time.Second
)

// Cache is one entry, held against removal until Close or this process's end.
type Cache struct {
	Dir   string
	facts Facts
	lock  *flock.Lock

	mu      sync.Mutex // guards below
	inside  int        // warm-ups of this run that are running
	warming *flock.Lock
}

// Open gives the entry for facts below root, which is the user's cache or the
// directory that a configuration names, and makes it where it is not there. A
// directory over a network is refused, and one of another user: what lies in
// it is run.
func Open(root string, f Facts) (*Cache, error) { return open(root, f, unix.Statfs) }

func open(root string, f Facts, stat statfs) (*Cache, error) {
	name, err := f.Name()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, Kind, name)
	if err := stat.local(dir); err != nil {
		return nil, err
	}
	c := &Cache{Dir: dir, facts: f}
	if err := c.hold(f); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// hold makes the entry under a shared lock, which keeps `cache clear` from it.
func (c *Cache) hold(f Facts) error {
	if err := os.MkdirAll(filepath.Dir(c.Dir), 0o755); err != nil {
		return unusable(c.Dir, err)
	}
	lock, err := flock.Open(c.Dir + flock.Suffix)
	if err != nil {
		return unusable(c.Dir, err)
	}
	c.lock = lock
	if shared, err := lock.Try(false); err != nil {
		return unusable(c.Dir, err)
	} else if !shared {
		return runner.Errorf(runner.Unavailable, "open kernel cache %s: it is being removed", c.Dir).WithHint("try again")
	}
	if c.warming, err = flock.Open(c.Dir + warmUps); err != nil {
		return unusable(c.Dir, err)
	}
	if _, err := c.warming.Try(true); err != nil { // nobody compares an entry that is not sealed yet
		return unusable(c.Dir, err)
	}
	defer func() { _ = c.warming.Drop() }() // closed with its file at the latest
	made := os.Mkdir(c.Dir, 0o700)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return unusable(c.Dir, made)
	}
	if err := owned(c.Dir); err != nil {
		return err
	}
	if made != nil {
		return nil // somebody filled it, and maybe seals it now
	}
	return c.fill()
}

// fill makes the own files of an entry that is new, and seals it: what comes
// before a certificate comes after that.
func (c *Cache) fill() error {
	text, err := c.facts.text()
	if err != nil {
		return err
	}
	for _, part := range []string{"inductor", "triton"} {
		if err := os.Mkdir(filepath.Join(c.Dir, part), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return unusable(c.Dir, err)
		}
	}
	if err := renameio.WriteFile(filepath.Join(c.Dir, factsFile), text, 0o600); err != nil {
		return unusable(c.Dir, err)
	}
	return seal.Write(c.Dir)
}

// owned refuses an entry that somebody else can write to.
func owned(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return unusable(dir, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return runner.Errorf(runner.Invalid, "open kernel cache %s: want a directory that uid %d alone may write to, got %s", dir, os.Getuid(), info.Mode()).
			WithHint("remove it, or set warmup.cache_directory to another place: what lies in it is run")
	}
	return nil
}

func unusable(dir string, err error) error {
	return runner.Errorf(runner.Unavailable, "open kernel cache %s: %w", dir, err).
		WithHint("set warmup.cache_directory to a local directory that can be written to")
}

// Enter is called before a worker warms up, and Leave after it. The first of
// those that are inside, of all runs, compares the entry with what it was at the
// last certificate: a compiler trusts what it finds, and one file that was cut
// short would fail every warm-up. did says what was put away, and is empty where
// the entry is whole; the warm-up is then cold where it would have been warm.
// Callable from any goroutine.
func (c *Cache) Enter() (did string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside++
	if c.inside > 1 {
		return "", nil
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end, looked := time.Now().Add(longest), false; ; <-tick.C {
		if !looked {
			if looked, err = c.warming.Try(true); err == nil && looked {
				did, err = c.restore()
			}
		}
		if err != nil {
			return did, err
		}
		shared, err := c.warming.Try(false) // to be had beside other warm-ups, whose files nobody may touch
		if err != nil || shared {
			return did, err
		}
		if time.Now().After(end) {
			return did, runner.Errorf(runner.Unavailable, "enter kernel cache %s: another run has been comparing or sealing it for %s", c.Dir, longest)
		}
	}
}

// restore makes the entry good again, or new.
func (c *Cache) restore() (did string, err error) {
	did, err = seal.Restore(c.Dir)
	if _, gone := os.Stat(filepath.Join(c.Dir, factsFile)); err == nil && errors.Is(gone, fs.ErrNotExist) {
		err = c.fill() // the entry was set aside, or removed
	}
	return did, err
}

// Leave says whether the warm-up came to its certificate. The last of those
// that are inside, of all runs, seals the entry then; where that one failed, what
// the others made since the last seal is made again.
func (c *Cache) Leave(certified bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside--
	if c.inside > 0 {
		return nil
	}
	defer func() { _ = c.warming.Drop() }() // closed with its file at the latest
	if !certified {
		return nil
	}
	alone, err := c.warming.Try(true)
	if err != nil || !alone {
		return err
	}
	return seal.Write(c.Dir)
}

// Environment is what a process is told of the entry: where the compiler and
// Triton keep what they make.
func (c *Cache) Environment() []string {
	return []string{"TORCHINDUCTOR_CACHE_DIR=" + filepath.Join(c.Dir, "inductor"), "TRITON_CACHE_DIR=" + filepath.Join(c.Dir, "triton")}
}

// Close lets others remove the entry.
func (c *Cache) Close() error {
	if c == nil || c.lock == nil {
		return nil
	}
	err := c.lock.Close()
	if c.warming != nil {
		err = errors.Join(err, c.warming.Close())
	}
	if err != nil {
		return runner.Errorf(runner.Internal, "close kernel cache: %w", err)
	}
	return nil
}

// CompileThreads is how many threads each worker compiles with: the cores,
// shared by those that warm up side by side; torch's own most is 32.
func CompileThreads(cores, width int) int { return max(1, min(32, cores/max(width, 1))) }
