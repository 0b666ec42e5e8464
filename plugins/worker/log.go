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
)

// lifeLog takes all that one process prints: raw into its log file, parsed to
// the logger, and the end of it into memory for the exit report.
type lifeLog struct {
	logger hclog.Logger

	mu      sync.Mutex // guards below
	file    *os.File   // nil after a failed write or close
	room    int64      // bytes that the file may still take
	tail    []string
	trace   tracebackFinder
	noise   []string
	noisy   int // lines of noise, kept or not
	newest  time.Time
	pending bool // the file was told that it is truncated
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
	l.write(raw)
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
	l.logger.Log(parsed.Level, parsed.Message, parsed.Fields...)
}

// stdout takes one line of stdout that is not the handshake: noise.
func (l *lifeLog) stdout(line []byte, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noisy++
	if len(l.noise) == noiseLines {
		return
	}
	text := clean(string(line), noiseWidth)
	if cut {
		text += " [line cut]"
	}
	l.noise = append(l.noise, text)
	l.write("[stdout] " + text)
}

// write appends a line to the file, within its bound. Called with mu held.
func (l *lifeLog) write(line string) {
	if l.file == nil || l.pending {
		return
	}
	if l.room -= int64(len(line)) + 1; l.room < 0 {
		line, l.pending = "dflash-runner: log file full, what follows is not kept", true
		l.logger.Warn("worker log file full", "path", l.file.Name())
	}
	if _, err := l.file.WriteString(line + "\n"); err != nil {
		l.logger.Warn("worker log file lost", "path", l.file.Name(), "err", err.Error())
		l.file.Close()
		l.file = nil
	}
}

// close ends the log: tells how much noise there was and closes the file.
func (l *lifeLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if more := l.noisy - len(l.noise); more > 0 {
		l.noise = append(l.noise, fmt.Sprintf("and %d lines more", more))
	}
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
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
