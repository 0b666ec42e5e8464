package host

import (
	"sync"
	"time"
)

// Wait is something of a plugin that is waited for.
type Wait struct {
	What  string // a question, or its handshake
	Since time.Time
	Limit time.Duration // of the whole wait
}

// Waits are all that is waited for. Its methods may be called from any goroutine;
// the zero value is ready, and a nil one keeps nothing.
type Waits struct {
	mu   sync.Mutex // guards below
	last uint64
	open map[uint64]Wait
}

// begin notes a wait until done is called.
func (w *Waits) begin(what string, limit time.Duration) (done func()) {
	if w == nil {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[uint64]Wait{}
	}
	w.last++
	number := w.last
	w.open[number] = Wait{what, time.Now(), limit}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, number)
	}
}

// Oldest gives what is waited for the longest, and how many waits there are.
func (w *Waits) Oldest() (oldest Wait, waits int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.open {
		if oldest.What == "" || x.Since.Before(oldest.Since) {
			oldest = x
		}
	}
	return oldest, len(w.open)
}
