package worker

import "strings"

// Bounds of a kept traceback: a chain of exceptions shows its first lines and
// its last, where the cause and the final error are.
const (
	tracebackLines = 120
	tracebackHead  = 20
	tracebackWidth = 300
)

// traceKind tells what a traceback came from.
type traceKind uint8

const (
	traceNone      traceKind = iota
	traceException           // Python said that an exception was not caught, or logged one
	traceDump                // faulthandler's stacks: asked for, or at a fatal error
)

// tracebackFinder finds Python tracebacks and faulthandler dumps in a stream of
// stderr lines, and keeps the last of them.
type tracebackFinder struct {
	kind  traceKind
	lines []string
	open  bool // the last line may go on
	final bool // an exception's last line was seen; only a chain may follow
	dumps int  // lines of dumps seen, to tell that a new one is arriving
}

// feed takes one line and reports whether it belongs to a traceback.
func (t *tracebackFinder) feed(line string) bool {
	switch {
	case startsException(line):
		t.begin(traceException, t.kind == traceException && t.open)
	case startsDump(line):
		t.begin(traceDump, t.kind == traceDump && t.open)
	case t.open && t.kind == traceException && t.continuesException(line):
	case t.open && t.kind == traceDump && continuesDump(line):
	default:
		t.open = false
		return false
	}
	if t.kind == traceDump {
		t.dumps++
	}
	t.add(line)
	return true
}

// set replaces what is kept by a traceback that came whole.
func (t *tracebackFinder) set(lines []string) {
	t.begin(traceException, false)
	for _, l := range lines {
		t.add(l)
	}
	t.open = false
}

func (t *tracebackFinder) begin(kind traceKind, chained bool) {
	if !chained {
		t.lines = nil
	}
	t.kind, t.open, t.final = kind, true, false
}

func (t *tracebackFinder) add(line string) {
	t.lines = append(t.lines, clean(line, tracebackWidth))
	if len(t.lines) > tracebackLines { // drop from the middle
		t.lines = append(t.lines[:tracebackHead], t.lines[tracebackHead+1:]...)
	}
}

func startsException(line string) bool {
	return strings.HasPrefix(line, "Traceback (most recent call last):") ||
		strings.HasPrefix(line, "  + Exception Group Traceback (most recent call last):")
}

// continuesException takes the indented frames, the first line after them (the
// error itself), its note lines, and the words that chain two exceptions.
func (t *tracebackFinder) continuesException(line string) bool {
	if line == "" || strings.HasPrefix(line, "During handling of the above exception") ||
		strings.HasPrefix(line, "The above exception was the direct cause") {
		return true
	}
	if t.final {
		return false
	}
	if !strings.HasPrefix(line, " ") {
		t.final = true
	}
	return true
}

func startsDump(line string) bool {
	return strings.HasPrefix(line, "Thread 0x") || strings.HasPrefix(line, "Current thread 0x") ||
		strings.HasPrefix(line, "Fatal Python error: ")
}

func continuesDump(line string) bool {
	return line == "" || strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "Extension modules:") ||
		strings.HasPrefix(line, "Python runtime state:")
}

// last gives the error's own line of an exception's traceback.
func lastError(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if l := lines[i]; l != "" && !strings.HasPrefix(l, " ") {
			return l
		}
	}
	return ""
}
