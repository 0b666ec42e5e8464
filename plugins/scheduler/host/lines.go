package host

import (
	"bytes"
	"sync"
)

// maxLine bounds a line of what go-plugin carries, in bytes.
const maxLine = 16 << 10

// taker takes lines.
type taker interface {
	Take(line []byte, cut bool)
}

// lines cuts a stream into lines for a log. A longer line is cut, its rest
// dropped. go-plugin writes to it from its own goroutines.
type lines struct {
	mu       sync.Mutex // guards below
	log      taker      // nil: what comes is dropped
	rest     []byte
	skipping bool
}

func (l *lines) to(t taker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = t
}

// Write takes a piece of the stream.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	for len(b) > 0 {
		line, after, ended := bytes.Cut(b, []byte("\n"))
		if !l.skipping {
			l.rest = append(l.rest, line...)
		}
		if cut := len(l.rest) > maxLine; ended || cut {
			l.flush(cut)
			l.skipping = !ended
		}
		b = after
	}
	return n, nil
}

// flush hands the line over. Under the lock.
func (l *lines) flush(cut bool) {
	if l.log != nil && !l.skipping {
		l.log.Take(l.rest[:min(len(l.rest), maxLine)], cut)
	}
	l.rest = l.rest[:0]
}
