package worker

import (
	"io"
	"sync"
)

// greetingReader carries at most one line, the handshake, from the reader of
// stdout to go-plugin. Offering never blocks; reading does, until the line or
// the end has come.
type greetingReader struct {
	ready chan struct{} // closed when there is a line or none will come

	mu     sync.Mutex // guards below
	closed bool
	found  bool
	line   greeting
	rest   []byte
}

func newGreetingReader() *greetingReader { return &greetingReader{ready: make(chan struct{})} }

// offer takes a line if it is the first one with a handshake's form.
func (g *greetingReader) offer(line []byte) bool {
	parsed, ok := parseGreeting(line)
	if !ok {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.found || g.closed {
		return false
	}
	g.found, g.closed, g.line = true, true, parsed
	g.rest = append(append([]byte{}, line...), '\n')
	close(g.ready)
	return true
}

// end says that no line will come any more.
func (g *greetingReader) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		close(g.ready)
	}
}

// accepted gives the line that was taken.
func (g *greetingReader) accepted() (greeting, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.line, g.found
}

// Read waits for the line, gives it, and then io.EOF.
func (g *greetingReader) Read(p []byte) (int, error) {
	<-g.ready
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

// Close implements io.Closer; nothing is held.
func (g *greetingReader) Close() error { return nil }
