package host

import (
	"context"
	"sync"

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
}

func newQueue() *queue {
	return &queue{events: make(chan scheduler.Event, queueRoom), closed: make(chan struct{})}
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

// tell streams events until the queue is closed or the stream broken. A plugin
// that takes none costs nothing but its events, so it is no strike.
func (p *Plugin) tell(running *process, q *queue) {
	ctx, cancel := context.WithCancel(p.life)
	defer cancel()
	context.AfterFunc(ctx, q.close)
	p.edges.Go(func() { // ends with the queue; frees a Send that waits
		<-q.closed
		cancel()
	})
	stream, err := running.ask.Observe(ctx)
	if err != nil {
		return
	}
	for {
		select {
		case <-q.closed:
			return
		case e := <-q.events:
			if stream.Send(eventMessage(e)) != nil {
				return
			}
		}
	}
}

func eventMessage(e scheduler.Event) *schedulerv1.Event {
	m := &schedulerv1.Event{Number: e.Number, AtUnixMs: e.At.UnixMilli(), Level: string(e.Level), Name: e.Name, Message: e.Message, Step: uint64(e.Step), Row: uint64(e.Row)}
	if e.Worker != nil {
		m.Worker = workerMessage(*e.Worker)
	}
	return m
}
