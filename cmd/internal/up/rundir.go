package up

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// rundir is a run's directory while this process holds its lock. The kernel
// drops the lock with the process, so a lock that can be had is proof that no
// supervisor of this run is alive.
type rundir struct {
	name string
	path string
	lock *os.File
}

func (d *rundir) join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// close gives the run's name back. The directory stays.
func (d *rundir) close() error { return d.lock.Close() }

// found is what stands at a run's name before this process takes it.
type found int

const (
	nothing    found = iota
	live             // another supervisor holds the lock
	unfinished       // a journal and no summary that says done
	finished         // ended with exit 0
)

// intent is what the user asked of a name.
type intent struct {
	explicit bool   // --name was given
	resume   bool   // --resume was given
	file     string // of the configuration; empty: the embedded default
	root     string // the directory of runs, absolute; empty: the default's
}

// again is the command that begins a run of that name, or goes on with it,
// which it does with its own configuration, found in the directory of runs.
func (in intent) again(name string, resume bool) string {
	command := "dflash-runner up"
	switch {
	case resume:
		command += " --resume"
	case in.file != "":
		command += " -f " + shellWord(in.file)
	}
	return command + " --name " + name + in.runs()
}

// runs is the flag that names the directory of runs, where it is not the default.
func (in intent) runs() string {
	dir := place(in.root)
	if dir == "" || dir == defaultRuns {
		return ""
	}
	return " --runs " + shellWord(dir)
}

// defaultRuns is where commands look for runs that are not told otherwise.
const defaultRuns = "runs"

// shellWord quotes a text for a shell where it must be.
func shellWord(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/+,:@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// decision is what to do about a name: use it, look at the next free one, or refuse.
type decision struct {
	use, next bool
	err       *runner.Error
}

// decide is the whole table of names: what stands there against what was asked.
func decide(name string, f found, in intent) decision {
	switch {
	case f == live:
		return decision{err: runner.Errorf(runner.Unavailable, "open run %q: a live supervisor has it", name).
			WithHint("see `dflash-runner status %s`, end it with `dflash-runner down %s`, or choose another --name", name+in.runs(), name+in.runs())}
	case f == nothing && in.resume:
		return decision{err: runner.Errorf(runner.NotFound, "resume run %q: there is nothing to resume", name).
			WithHint("`%s` without --resume starts it", in.again(name, false))}
	case f == finished && in.resume:
		return decision{err: runner.Errorf(runner.Invalid, "resume run %q: it is finished", name).
			WithHint("choose another --name for a new run")}
	case f == unfinished && !in.resume:
		return decision{err: runner.Errorf(runner.Invalid, "open run %q: it exists and is unfinished", name).
			WithHint("go on with `%s`, or choose another --name", in.again(name, true))}
	case f == finished && in.explicit:
		return decision{err: runner.Errorf(runner.Invalid, "open run %q: it exists and is finished", name).
			WithHint("choose another --name, or leave it out to get a new one")}
	case f == finished:
		return decision{next: true}
	}
	return decision{use: true}
}

// openRun takes the run's directory under root, making it where it is new. A
// finished run whose name came from the configuration makes way: the next free
// "name-N" is taken. After an error nothing was made and no lock is held.
func openRun(root, name string, in intent) (*rundir, error) {
	if !validName(name) {
		return nil, runner.Errorf(runner.Invalid, "open run %q: a run's name is 1 to 64 of a-z A-Z 0-9 . _ - and starts with a letter or digit", name)
	}
	root, err := filepath.Abs(root) // workers have another working directory
	if err != nil {
		return nil, writable(root, err)
	}
	in.root = root
	for n, candidate := 1, name; ; candidate = name + "-" + strconv.Itoa(n) {
		n++
		path := filepath.Join(root, candidate)
		f, lock, err := look(path)
		if err != nil {
			return nil, err
		}
		d := decide(candidate, f, in)
		if d.use {
			return take(path, candidate, lock)
		}
		if lock != nil {
			_ = lock.Close() // only looked at
		}
		if d.err != nil {
			return nil, d.err
		}
	}
}

func validName(name string) bool {
	if len(name) < 1 || len(name) > 64 || strings.ContainsAny(name[:1], "._-") {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// look judges what stands at path, and holds its lock where it could be had.
func look(path string) (found, *os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nothing, nil, nil
	}
	if err != nil {
		return nothing, nil, writable(path, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return live, nil, nil
	}
	s, err := admin.ReadSummary(path)
	switch {
	case err == nil && s.Exit == runner.ExitDone:
		return finished, lock, nil
	case hasJournal(path):
		return unfinished, lock, nil
	}
	return nothing, lock, nil // died before it trained anything: as good as new
}

func hasJournal(path string) bool {
	segments, err := filepath.Glob(filepath.Join(path, "journal", "*.journal"))
	return err == nil && len(segments) > 0
}

func take(path, name string, lock *os.File) (*rundir, error) {
	for _, sub := range []string{"", "journal", "logs", "certificates", "checkpoints", "communicators"} {
		if err := os.MkdirAll(filepath.Join(path, sub), 0o700); err != nil {
			return nil, writable(path, err)
		}
	}
	if lock == nil {
		var err error
		lock, err = os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, writable(path, err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = lock.Close()
			return nil, runner.Errorf(runner.Unavailable, "open run %q: another supervisor took it just now", name)
		}
	}
	// Proof that the directory can be written, before anything is started.
	probe := filepath.Join(path, ".write")
	if err := os.WriteFile(probe, []byte("x"), 0o600); err != nil {
		_ = lock.Close()
		return nil, writable(path, err)
	}
	if err := os.Remove(probe); err != nil {
		_ = lock.Close()
		return nil, writable(path, err)
	}
	if err := empty(filepath.Join(path, "communicators")); err != nil {
		_ = lock.Close()
		return nil, writable(path, err)
	}
	return &rundir{name: name, path: path, lock: lock}, nil
}

// empty removes the stores of an earlier life's communicators, under the run's
// lock: numbers begin again at 1, and what lies there are addresses of the dead.
func empty(dir string) error {
	left, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func writable(path string, err error) error {
	e := runner.Errorf(runner.Unavailable, "open run directory %s: %w", path, err)
	return e.WithHint("give a directory that can be written: --set run.directory=DIR")
}

// place names a run's paths relative to the working directory where that is shorter.
func place(path string) string {
	if path == "" {
		return ""
	}
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return path
}

var _ fmt.Stringer = found(0)

// String names what was found, for the tests' messages.
func (f found) String() string { return [...]string{"nothing", "live", "unfinished", "finished"}[f] }
