package host

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// ErrAbsent is the answer of a plugin that cannot be asked now: it does not do
// that, it is quarantined, or stopped. Who asks answers with the built-in; it is
// no strike.
var ErrAbsent = errors.New("the plugin cannot be asked now")

// Plugin is a plugin of a run, through all its starts. Its methods may be
// called from any goroutine.
type Plugin struct {
	entry Entry
	o     Options
	edges sync.WaitGroup // every goroutine of the plugin's

	life   context.Context // ends with Close
	cancel context.CancelFunc

	mu      sync.Mutex // guards below
	process *process   // nil unless it runs
	state   State
	queue   *queue // of events; nil unless it observes
}

// Start starts a plugin and takes it through its configuration. An error says
// why it cannot be used; nothing of it is left then.
func Start(ctx context.Context, e Entry, o Options) (*Plugin, error) {
	p := &Plugin{entry: e, o: o, state: State{Name: e.Name, State: Starting}}
	p.life, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.state.Starts++
	running, err := launch(ctx, e, o, 1)
	if err != nil {
		p.cancel()
		return nil, err
	}
	p.enter(running)
	return p, nil
}

// enter makes a started process the one that is asked, unless the plugin was
// stopped meanwhile.
func (p *Plugin) enter(running *process) bool {
	p.mu.Lock()
	if p.state.State == Stopped {
		p.mu.Unlock()
		return false
	}
	p.process = running
	s := &p.state
	s.Name, s.Version, s.State, s.Pid = running.info.GetName(), running.info.GetVersion(), Running, running.hosted.Pid()
	s.APIVersion, s.Capabilities, s.Strikes, s.Until = running.version, running.capabilities(), 0, time.Time{}
	if running.can[scheduler.Observe] {
		p.queue = newQueue(p.o.Flush)
		q := p.queue
		p.edges.Go(func() { p.tell(running, q) }) // ends with the queue or the process
	}
	p.edges.Go(func() { p.watch(running) }) // ends with the process
	if p.o.Look > 0 {
		p.edges.Go(func() { p.look(running) }) // ends with the process or the plugin
	}
	p.mu.Unlock()
	p.changed()
	return true
}

// watch notes that a process ended by itself, and how.
func (p *Plugin) watch(running *process) {
	<-running.hosted.Exited()
	p.end(running, "it ended unasked, "+running.hosted.Fate()+running.lastWords())
}

// Fallen says how the plugin's process ended by itself, or why it is not asked
// any more: what stands behind the error of a broken connection. It waits for
// that while the context lives; empty for a process that goes on.
func (p *Plugin) Fallen(ctx context.Context) string {
	p.mu.Lock()
	running, last := p.process, p.state.Last
	p.mu.Unlock()
	if running == nil {
		return last
	}
	select {
	case <-running.hosted.Exited():
		return "it ended unasked, " + running.hosted.Fate() + running.lastWords()
	case <-ctx.Done():
		return ""
	}
}

// end takes a process out of use, ends it, and begins a quarantine. Only the
// first reason of a process counts.
func (p *Plugin) end(running *process, why string) {
	p.mu.Lock()
	if p.process != running || p.state.State == Stopped {
		p.mu.Unlock()
		return
	}
	p.process = nil
	p.quarantine(why)
	p.closeQueue()
	p.edges.Go(func() { p.bury(running) }) // bounded
	p.mu.Unlock()
	p.changed()
}

// quarantine notes an end and how long the plugin rests. Under the lock.
func (p *Plugin) quarantine(why string) {
	s := &p.state
	wait := p.o.Backoff.Min << min(s.Ends, 20)
	if wait > p.o.Backoff.Max || wait <= 0 {
		wait = p.o.Backoff.Max
	}
	s.Ends++
	s.State, s.Pid, s.Last, s.Until = Quarantined, 0, why, time.Now().Add(wait)
	s.Vitals = Vitals{}
}

// closeQueue ends the telling of events. Under the lock.
func (p *Plugin) closeQueue() {
	if p.queue != nil {
		p.queue.close()
		p.queue = nil
	}
}

// bury ends a process; that it would not end, or had ended by itself before it
// was to, is told in the state.
func (p *Plugin) bury(running *process) {
	err := running.stop()
	p.mu.Lock()
	before := p.state.Last
	if how := running.fell(); how != "" && !strings.Contains(before, how) {
		p.state.Last += "; it ended unasked, " + how
	}
	if err != nil {
		p.state.Last += "; " + err.Error()
	}
	more := p.state.Last != before
	p.mu.Unlock()
	if more {
		p.changed()
	}
}

// current gives the process to ask, and begins a new start where a quarantine
// is over: who asks does not wait for it.
func (p *Plugin) current(c scheduler.Capability) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.State == Quarantined && !time.Now().Before(p.state.Until) && p.life.Err() == nil {
		p.state.State = Starting
		p.state.Starts++
		number := p.state.Starts
		p.edges.Go(func() { p.again(number) }) // bounded by the limits of a start
	}
	if p.process == nil || !p.process.can[c] {
		return nil, ErrAbsent
	}
	return p.process, nil
}

// again starts a plugin whose quarantine is over: from its files, checked anew.
func (p *Plugin) again(number int) {
	running, err := launch(p.life, p.entry, p.o, number)
	if err == nil {
		if !p.enter(running) {
			p.bury(running)
		}
		return
	}
	p.mu.Lock()
	if p.state.State != Stopped {
		p.quarantine(err.Error())
	}
	p.mu.Unlock()
	p.changed()
}

// answered counts a call; an error is a strike. It gives the error back.
func (p *Plugin) answered(running *process, err error) error {
	p.mu.Lock()
	p.state.Calls++
	if err == nil {
		p.state.Strikes = max(p.state.Strikes-1, 0)
		p.mu.Unlock()
		return nil
	}
	if runner.KindOf(err) == runner.Canceled || p.process != running { // who asked gave up; or it is buried already
		p.mu.Unlock()
		return err
	}
	p.state.Refused++
	p.state.Strikes++
	p.state.Last = err.Error()
	out := p.state.Strikes >= p.o.Strikes
	p.mu.Unlock()
	if out {
		p.end(running, err.Error())
	} else {
		p.changed()
	}
	return err
}

// State gives a picture of the plugin.
func (p *Plugin) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// Can says whether the plugin, when it ran last, offered a capability.
func (p *Plugin) Can(c scheduler.Capability) bool {
	for _, x := range p.State().Capabilities {
		if x == c {
			return true
		}
	}
	return false
}

func (p *Plugin) changed() {
	if p.o.Changed != nil {
		p.o.Changed(p.State())
	}
}

// Close ends the plugin and waits until nothing of it is left, in a bound.
func (p *Plugin) Close() error {
	p.mu.Lock()
	running := p.process
	p.process = nil
	p.state.State, p.state.Pid = Stopped, 0
	q := p.queue
	p.closeQueue()
	p.mu.Unlock()
	q.wait()
	p.cancel()
	var err error
	if running != nil {
		err = running.stop()
	}
	p.edges.Wait()
	return err
}
