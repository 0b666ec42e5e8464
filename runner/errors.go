package runner

import (
	"errors"
	"fmt"
)

// Kind is the closed, append-only class of an error. Numbers equal those of
// the proto enum and of python/dflash_runner/errors.py.
type Kind uint8

// The kinds.
const (
	Internal    Kind = iota // a bug in this program
	Invalid                 // the user's or the peer's input is wrong
	NotFound                // what was named is not there
	Exhausted               // memory, slots or disk ran out
	Stale                   // an older generation, version, lineage or communicator
	Unavailable             // may work later
	Canceled                // the caller gave up
	Fatal                   // the process must be replaced; any CUDA fault
)

var kindNames = [...]string{"internal", "invalid", "not_found", "exhausted", "stale", "unavailable", "canceled", "fatal"}

// String gives the name used in frames, logs and JSON.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind reads a kind's name; ok is false for anything else.
func ParseKind(s string) (k Kind, ok bool) {
	for i, n := range kindNames {
		if n == s {
			return Kind(i), true
		}
	}
	return Internal, false
}

// Error carries a kind, a lowercase message, and where it helps a hint of
// what to do, which is printed on a line of its own.
type Error struct {
	Kind Kind
	Msg  string
	Hint string
	Err  error // wrapped cause, or nil
}

// Error gives the message without the hint.
func (e *Error) Error() string { return e.Msg }

// Unwrap gives the wrapped cause.
func (e *Error) Unwrap() error { return e.Err }

// WithHint returns a copy of e that says what to do.
func (e *Error) WithHint(format string, a ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, a...)
	return &c
}

// Errorf makes an Error as fmt.Errorf does; %w wraps.
func Errorf(k Kind, format string, a ...any) *Error {
	err := fmt.Errorf(format, a...)
	return &Error{Kind: k, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// KindOf finds the kind of err: that of the outermost Error in its chain,
// Internal when there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// HintOf finds the outermost hint in err's chain.
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}
