package drive

import "sync"

// inbox is the loop's one queue. It never refuses and never blocks a poster:
// what feeds it is bounded at its source (one outstanding order a row, one
// reader a lane that stops when its life is gone).
type inbox struct {
	mu     sync.Mutex // guards below
	queue  []any      // core.Input or func()
	closed bool

	ready chan struct{} // holds at most one token: there is something to take
}

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

// post adds an input, or a func() to be run by the loop. After close it does
// nothing and says so. From any goroutine.
func (b *inbox) post(v any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.queue = append(b.queue, v)
	select {
	case b.ready <- struct{}{}:
	default:
	}
	return true
}

// take removes everything that is there. From the loop.
func (b *inbox) take() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queue
	b.queue = nil
	return q
}

// close refuses what comes later and gives what is left.
func (b *inbox) close() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	q := b.queue
	b.queue = nil
	return q
}
