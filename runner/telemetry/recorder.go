// Package telemetry turns events into log lines, events.jsonl and metrics. All
// of it is for people and may be lost; nothing here feeds a decision.
package telemetry

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Recorder writes events to a file, one JSON object a line, and to a logger.
// It never makes whoever observes wait: when its queue is full, events are
// lost, counted, and the loss is an event itself.
type Recorder struct {
	log   hclog.Logger
	file  *os.File
	queue chan runner.Event
	done  chan struct{} // closed when the writer has ended

	mu     sync.Mutex // guards below
	closed bool
	counts counts
}

// counts is what became of events.
type counts struct {
	seen    map[key]uint64 // by level and name
	lost    uint64         // did not fit the queue, or came after Close
	unsaved uint64         // the file could not be written
}

type key struct {
	level runner.Level
	name  string
}

// NewRecorder appends to the file at path, and logs to log. The queue holds
// capacity events. Close ends it.
func NewRecorder(path string, log hclog.Logger, capacity int) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "open events: %w", err)
	}
	r := &Recorder{
		log: log, file: f, queue: make(chan runner.Event, capacity), done: make(chan struct{}),
		counts: counts{seen: map[key]uint64{}},
	}
	go r.write() // ends when Close closes the queue; Close waits for it
	return r, nil
}

// Observe takes an event, from any goroutine, without waiting. An event
// without a time gets this moment's.
func (r *Recorder) Observe(e runner.Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.seen[key{e.Level, e.Name}]++
	if !r.closed {
		select {
		case r.queue <- e:
			return
		default:
		}
	}
	r.counts.lost++
}

// Lost gives how many events were lost, and how many reached the log alone.
func (r *Recorder) Lost() (lost, unsaved uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts.lost, r.counts.unsaved
}

// Close writes what is queued and closes the file, within ctx.
func (r *Recorder) Close(ctx context.Context) error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
	r.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return runner.Errorf(runner.Unavailable, "close events: still writing: %w", context.Cause(ctx))
	}
}

// write is the one writer.
func (r *Recorder) write() {
	defer close(r.done)
	defer r.file.Close()
	told := uint64(0)
	for e := range r.queue {
		told = r.tellLoss(told)
		r.one(e)
	}
	r.tellLoss(told)
}

// tellLoss writes that events were lost since the last time; it gives the new total.
func (r *Recorder) tellLoss(told uint64) uint64 {
	lost, _ := r.Lost()
	if lost > told {
		r.one(runner.Event{
			At: time.Now(), Level: runner.Warn, Name: "events lost",
			Message: "they came faster than they could be written",
			Figures: map[string]float64{"events": float64(lost - told)},
		})
	}
	return lost
}

func (r *Recorder) one(e runner.Event) {
	logEvent(r.log, e)
	line, err := encode(e)
	if err == nil {
		_, err = r.file.Write(line)
	}
	if err == nil {
		return
	}
	r.mu.Lock()
	r.counts.unsaved++
	first := r.counts.unsaved == 1
	r.mu.Unlock()
	if first { // once: the next thousand say nothing new
		r.log.Warn("event not saved", "err", err)
	}
}
