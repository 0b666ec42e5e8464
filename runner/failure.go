package runner

import (
	"strings"
	"time"
	"unicode"
)

// Cause is what a failure was: a closed set, told apart by evidence.
type Cause string

// The causes.
const (
	CauseExit     Cause = "exit"        // ended with a code that is not 0
	CauseSignal   Cause = "signal"      // killed by a signal of unknown sender
	CauseOOM      Cause = "oom"         // killed by the kernel for memory
	CauseCUDA     Cause = "cuda"        // a CUDA fault
	CausePython   Cause = "python"      // an uncaught Python error
	CauseDeadline Cause = "deadline"    // did not answer in time
	CauseProtocol Cause = "protocol"    // broke the lane or the handshake
	CauseCert     Cause = "certificate" // its certificate was refused
	CauseLaunch   Cause = "launch"      // never started
	CauseKilled   Cause = "killed"      // by this supervisor, on purpose
)

// Failure is the report of one death: the product's most-read message.
type Failure struct {
	Worker     Worker     `json:"worker"`
	Generation Generation `json:"generation"`
	Role       Role       `json:"role"`
	Device     string     `json:"device"`
	Cause      Cause      `json:"cause"`
	Message    string     `json:"message"`
	Hint       string     `json:"hint"`
	At         time.Time  `json:"at"`

	ExitCode     int      `json:"exit_code"`
	Signal       string   `json:"signal,omitempty"`
	OOMKilled    string   `json:"oom_killed"` // yes, no or unknown
	LastOrder    string   `json:"last_order,omitempty"`
	LastSignMS   int64    `json:"last_sign_ms"` // age of the last sign of life; -1 when there was none
	PeakBytes    uint64   `json:"peak_bytes"`   // VmHWM; 0 when unknown
	Stderr       []string `json:"stderr,omitempty"`
	Traceback    []string `json:"traceback,omitempty"`
	StdoutNoise  []string `json:"stdout_noise,omitempty"`
	Kernel       []string `json:"kernel,omitempty"` // lines of the kernel's log that are about it
	ForcedBySelf bool     `json:"forced_by_self"`   // our own kill ladder ended it

	Doing    string `json:"doing,omitempty"`    // the work that it died at: "train step 5 micro 0 row 12"
	Incident uint64 `json:"incident,omitempty"` // deaths of one number belong together; 0: not known
	Follows  string `json:"follows,omitempty"`  // the life whose death came before, in the same communicator
}

// Deterministic reports whether the same work would end so again, as far as
// the cause tells: an error of the program or the device does, and so does a
// crash; a signal from outside, a lack of memory or of time need not.
func (f Failure) Deterministic() bool {
	switch f.Cause {
	case CauseExit, CauseCUDA, CausePython, CauseProtocol, CauseCert:
		return true
	case CauseSignal:
		switch f.Signal {
		case "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP":
			return true
		}
	}
	return false
}

// Fingerprint gives a message without what differs from one time to the next:
// every number, address and identifier with a digit in it is '#'.
func Fingerprint(message string) string {
	var out strings.Builder
	word := func(w string) {
		if strings.ContainsAny(w, "0123456789") {
			w = "#"
		}
		out.WriteString(w)
	}
	message = strings.ToValidUTF8(message, "?")
	from := 0
	for i, r := range message {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' {
			word(message[from:i])
			out.WriteRune(r)
			from = i + len(string(r))
		}
	}
	word(message[from:])
	return out.String()
}
