// Package host is the host side of scheduling plugins: it checks the files of
// one against its catalog entry, starts it, asks it under deadlines, judges every
// answer, counts strikes, and ends and restarts what fails. It answers nothing
// itself: who asks has a built-in.
package host

import (
	"regexp"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// File is a file that runs, and what it must hold.
type File struct {
	Path   string
	SHA256 string // 64 hex digits
}

// Entry is a plugin in the catalog. Nothing that it does not name is started.
type Entry struct {
	Name            string // empty: whatever Info says
	Program         File
	Interpreter     File     // runs Program, in place; Path empty: the program runs itself, a script with Options.Python
	InterpreterArgs []string // before the program; a script's default is -E -s -B
	Args            []string
	Files           []File   // put beside the program, under their base names
	Env             []string // names that pass from the host's environment
	Config          map[string]any
}

// Options are what the host gives a plugin and bears of it.
type Options struct {
	Directory string                 // of the host's own, 0700: code, sockets and working directories go there
	LogPath   func(start int) string // raw output of a start; nil keeps none
	Seed      uint64
	Start     time.Duration // from the process to its handshake
	Call      time.Duration // of one question
	Strikes   int           // in a row, less one for every good answer; then it is ended
	Backoff   Backoff
	Look      time.Duration // from one look at what it holds to the next; 0: none
	Limits    Limits        // of what it may hold; one that holds more is ended
	Flush     time.Duration // to be told the events that wait, when it is stopped
	Environ   []string      // that Entry.Env chooses from
	Python    string        // the interpreter of scripts that name none; empty: those are refused
	// Waits keeps what is waited for, so that it can be shown. May be nil.
	Waits *Waits
	// Cut is told of what a full log lost: of the first line, of totals as they grow
	// tenfold, and of all at the end, from any goroutine. May be nil.
	Cut func(path string, lines, bytes uint64)
	// Changed is told of every change of state, from any goroutine. May be nil.
	Changed func(State)
	// Staged is called between the check of a plugin's files and its start. For tests.
	Staged func(directory string)
}

// Backoff is how long an ended plugin waits; it doubles with every end.
type Backoff struct{ Min, Max time.Duration }

// Defaults are the bounds that a run uses.
func Defaults() Options {
	return Options{Start: 10 * time.Second, Call: time.Second, Strikes: 3, Backoff: Backoff{5 * time.Second, 5 * time.Minute}, Look: 5 * time.Second, Flush: 2 * time.Second}
}

// logLimit bounds the log of one start, in bytes.
const logLimit = 4 << 20

// maxAnswer bounds one answer, in bytes.
const maxAnswer = 8 << 20

var (
	nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	keyRule  = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	sumRule  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// check refuses an entry that says too little.
func (e Entry) check() error {
	for _, f := range e.all() {
		if f.Path == "" || !sumRule.MatchString(f.SHA256) {
			return runner.Errorf(runner.Invalid, "check plugin %s: file %q: want its sha256 in 64 hex digits, got %q", e.Name, f.Path, f.SHA256).
				WithHint("`dflash-runner plugins describe PATH` prints it")
		}
	}
	return nil
}

// Kinds of state of a plugin.
const (
	Starting    = "starting"
	Running     = "running"
	Quarantined = "quarantined" // ended for its strikes; started again at Until
	Stopped     = "stopped"
)

// State is a plugin at a moment.
type State struct {
	Name         string
	Version      string
	State        string
	Pid          int
	APIVersion   uint32
	Capabilities []scheduler.Capability
	Starts       int
	Calls        uint64 // questions that it was asked, and that are over
	Refused      uint64 // answers that were not used
	Strikes      int
	Ends         int       // how often it was ended or died
	Last         string    // why, the last time
	Until        time.Time // of a quarantine
	Vitals       Vitals    // at the last look
}
