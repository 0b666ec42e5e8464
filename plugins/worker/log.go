package worker

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Bounds of what is kept of one life's output.
const (
	logLimit   = 64 << 20 // bytes of the log file
	tailLines  = 50
	tailWidth  = 1000
	noiseLines = 20
	noiseWidth = 300
	cutStep    = 1 << 20 // bytes that are lost between the first line that is told of and the next total
)

// Cut is what a log did not keep, since its file was full.
type Cut struct{ Lines, Bytes uint64 }

// lifeLog takes all that one process prints: raw into its log file, parsed to
// the logger, and the end of it into memory for the exit report.
type lifeLog struct {
	logger hclog.Logger
	onCut  func(Cut) // told of the first line that is cut, of totals that grow tenfold, and of the last; nil: nobody

	mu     sync.Mutex // guards below
	file   *os.File   // nil after a failed write or close
	room   int64      // bytes that the file may still take
	tail   []string
	trace  tracebackFinder
	noise  []string
	noisy  int    // lines of noise, kept or not
	taken  uint64 // bytes of lines, kept or not
	newest time.Time
	full   bool // the file was told that it is truncated
	cut    Cut
	told   Cut // the newest that onCut was told of
}

// openLog makes the log file of one life; there must be none yet.
func openLog(path string, limit int64, logger hclog.Logger) (*lifeLog, error) {
	l := &lifeLog{logger: logger, room: limit}
	if path == "" {
		return l, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "open worker log: %w", err)
	}
	l.file = f
	return l, nil
}

// stderr takes one line of stderr.
func (l *lifeLog) stderr(line []byte, cut bool) {
	parsed := parseLine(line)
	raw, text := string(line), string(line)
	if parsed.Parsed {
		text = parsed.text()
	}
	if cut {
		raw, text = raw+" [line cut]", text+" [line cut]"
	}
	l.mu.Lock()
	l.newest = time.Now()
	l.taken += uint64(len(line)) + 1
	lost := l.write(raw)
	l.tail = append(l.tail, clean(text, tailWidth))
	if len(l.tail) > tailLines {
		l.tail = l.tail[1:]
	}
	if len(parsed.Traceback) > 0 {
		l.trace.set(parsed.Traceback)
	} else if l.trace.feed(string(line)) && l.trace.kind == traceException {
		parsed.Level = hclog.Error
	}
	l.mu.Unlock()
	l.tell(lost)
	l.logger.Log(parsed.Level, parsed.Message, parsed.Fields...)
}

// stdout takes one line of stdout that is not the handshake: noise.
func (l *lifeLog) stdout(line []byte, cut bool) {
	l.tell(l.noted(line, cut))
}

// noted keeps a line of noise, and gives what write does.
func (l *lifeLog) noted(line []byte, cut bool) Cut {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noisy++
	l.taken += uint64(len(line)) + 1
	if len(l.noise) == noiseLines {
		return Cut{}
	}
	text := clean(string(line), noiseWidth)
	if cut {
		text += " [line cut]"
	}
	l.noise = append(l.noise, text)
	return l.write("[stdout] " + text)
}

// tell says what was cut. Without mu: who is told may ask for the log.
func (l *lifeLog) tell(lost Cut) {
	if lost.Lines > 0 && l.onCut != nil {
		l.onCut(lost)
	}
}

// lose counts a line that is not kept, and gives the total where it is to be told.
// Called with mu held.
func (l *lifeLog) lose(line string) Cut {
	l.cut.Lines++
	l.cut.Bytes += uint64(len(line)) + 1
	if l.told.Lines > 0 && l.cut.Bytes < max(10*l.told.Bytes, cutStep) {
		return Cut{}
	}
	l.told = l.cut
	return l.cut
}

// write appends a line to the file, within its bound, and gives what was cut
// where that is to be told. Called with mu held.
func (l *lifeLog) write(line string) (lost Cut) {
	if l.file == nil {
		return Cut{}
	}
	if l.full {
		return l.lose(line)
	}
	if l.room -= int64(len(line)) + 1; l.room < 0 {
		lost = l.lose(line)
		line, l.full = "dflash-runner: log file full, what follows is not kept", true
		l.logger.Warn("worker log file full", "path", l.file.Name())
	}
	if _, err := l.file.WriteString(line + "\n"); err != nil {
		l.logger.Warn("worker log file lost", "path", l.file.Name(), "err", err.Error())
		l.file.Close()
		l.file = nil
	}
	return lost
}

// close ends the log: tells how much noise there was and what was cut, and closes
// the file.
func (l *lifeLog) close() { l.tell(l.closed()) }

func (l *lifeLog) closed() (lost Cut) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if more := l.noisy - len(l.noise); more > 0 {
		l.noise = append(l.noise, fmt.Sprintf("and %d lines more", more))
	}
	if l.file == nil {
		return lost
	}
	if l.cut.Lines > 0 {
		_, err := fmt.Fprintf(l.file, "dflash-runner: %d lines, %d bytes were not kept\n", l.cut.Lines, l.cut.Bytes)
		if err != nil {
			l.logger.Warn("worker log file lost", "path", l.file.Name(), "err", err.Error())
		}
	}
	if l.cut != l.told {
		l.told, lost = l.cut, l.cut
	}
	l.file.Close()
	l.file = nil
	return lost
}

// amount gives how many bytes of lines came so far, kept or not.
func (l *lifeLog) amount() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}

// kept gives what the exit report shows.
func (l *lifeLog) kept() (tail, noise []string, trace tracebackFinder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	trace = l.trace
	trace.lines = append([]string(nil), l.trace.lines...)
	return append([]string(nil), l.tail...), append([]string(nil), l.noise...), trace
}

func (l *lifeLog) dumps() (lines int, newest time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trace.dumps, l.newest
}

// awaitDump waits until a dump has come after the first seen lines and nothing
// more for a while; at most until ctx or gone is done.
func (l *lifeLog) awaitDump(ctx context.Context, seen int, gone <-chan struct{}) {
	const quiet = 100 * time.Millisecond
	tick := time.NewTicker(quiet / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case <-tick.C:
		}
		if lines, newest := l.dumps(); lines > seen && time.Since(newest) > quiet {
			return
		}
	}
}
