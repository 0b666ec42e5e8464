package host

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
)

// queueRoom is how many events wait for a plugin; more are lost.
const queueRoom = 256

// queue holds events for one process.
type queue struct {
	events chan scheduler.Event
	once   sync.Once
	closed chan struct{}
	told   chan struct{} // closed when nothing more is told
	flush  time.Duration // bounds the telling once it is closed
}

func newQueue(flush time.Duration) *queue {
	return &queue{flush: flush, events: make(chan scheduler.Event, queueRoom), closed: make(chan struct{}), told: make(chan struct{})}
}

// wait returns once nothing more is told, in a bound. A nil queue is told.
func (q *queue) wait() {
	if q == nil {
		return
	}
	late := time.NewTimer(q.flush)
	defer late.Stop()
	select {
	case <-q.told:
	case <-late.C:
	}
}

func (q *queue) close() { q.once.Do(func() { close(q.closed) }) }

// Observe tells the plugin of an event, if it wants that and keeps up. It never
// waits.
func (p *Plugin) Observe(e scheduler.Event) {
	p.mu.Lock()
	q := p.queue
	p.mu.Unlock()
	if q == nil {
		return
	}
	select {
	case q.events <- e:
	default: // lost, as the gap in its numbers says
	}
}

// tell streams events until the queue is closed and empty, or the stream broken.
// A plugin that takes none costs nothing but its events, so it is no strike.
func (p *Plugin) tell(running *process, q *queue) {
	defer close(q.told)
	ctx, cancel := context.WithCancel(p.life)
	defer cancel()
	context.AfterFunc(ctx, q.close)
	p.edges.Go(func() { // ends with the queue, in a bound; frees a Send that waits
		<-q.closed
		q.wait()
		cancel()
	})
	stream, err := running.ask.Observe(ctx)
	if err != nil {
		return
	}
	for {
		select {
		case e := <-q.events:
			if stream.Send(eventMessage(e)) != nil {
				return
			}
		case <-q.closed:
			flush(stream, q)
			return
		}
	}
}

// flush tells what is left, and waits until the plugin has heard it.
func flush(stream schedulerv1.Scheduler_ObserveClient, q *queue) {
	for {
		select {
		case e := <-q.events:
			if stream.Send(eventMessage(e)) != nil {
				return
			}
		default:
			_, _ = stream.CloseAndRecv() // that it has no answer changes nothing
			return
		}
	}
}

func eventMessage(e scheduler.Event) *schedulerv1.Event {
	m := &schedulerv1.Event{Number: e.Number, AtUnixMs: e.At.UnixMilli(), Level: string(e.Level), Name: strings.ToValidUTF8(e.Name, "?"), Message: strings.ToValidUTF8(e.Message, "?"), Step: uint64(e.Step), Row: uint64(e.Row)}
	if e.Worker != nil {
		m.Worker = workerMessage(*e.Worker)
	}
	return m
}
