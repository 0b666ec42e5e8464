package up

import (
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// earlyRoom is how many events wait for a plugin that is not started yet; more
// are lost. The host has room for them all at once.
const earlyRoom = 200

// teller tells a plugin of the run's events, numbered in the order in which they
// came: what the plugin does not take in time leaves a gap. What came before it
// was started waits for it. A nil one has no plugin.
type teller struct {
	mu     sync.Mutex // held while an event is given: two are never reordered; guards below
	number uint64
	give   func(scheduler.Event) // never waits; nil before begin
	early  []scheduler.Event     // that came before
}

// observe takes an event. From any goroutine.
func (t *teller) observe(e runner.Event) {
	if t == nil {
		return
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.number++
	out := scheduler.Event{Number: t.number, At: e.At, Level: e.Level, Name: e.Name, Message: e.Message, Worker: e.Worker, Step: e.Step, Row: e.Row}
	switch {
	case t.give != nil:
		t.give(out)
	case len(t.early) < earlyRoom:
		t.early = append(t.early, out)
	}
}

// begin gives what waited, and all that comes from now on.
func (t *teller) begin(give func(scheduler.Event)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.early {
		give(e)
	}
	t.early, t.give = nil, give
}
