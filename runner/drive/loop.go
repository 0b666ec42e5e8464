package drive

import (
	"context"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/hang"
)

// Config is what a loop is made of. Everything is required unless it says so.
type Config struct {
	Core      core.Config
	Launcher  Launcher
	Scheduler Scheduler // nil: the built-in
	Builtin   Scheduler
	Memory    Memory
	Store     Store
	Journal   Journal

	// Observe is told of every event, from any goroutine: it must not block.
	Observe func(runner.Event)
	// Warming is told of warm-up progress, from any goroutine. May be nil.
	Warming func(life runner.Life, phase string, done, total uint32)
	// Started is told of every configured life, from any goroutine. May be nil.
	Started func(life runner.Life, p Process)

	SchedulerDeadline time.Duration // of one call
	Hang              hang.Limits   // what is borne of a worker that does not answer

	Plannable []runner.Sample
	Draws     uint32
	Pool      int // samples that a PoolScheduler is shown at a time; 0: PoolLimit
}

// Loop is a run in progress. Make it with New, run it with Run.
type Loop struct {
	c       Config
	core    *core.Core
	inbox   *inbox
	edges   sync.WaitGroup // every goroutine that the loop starts
	ctx     context.Context
	cancel  context.CancelCauseFunc
	lives   map[runner.Life]*life
	arenas  map[runner.Arena]*slotted
	creates map[runner.Arena]runner.CreateArena // asked of targets, by arena
	offered *slotted                            // came with the reply that the core is being told of
	images  map[core.ImageID]Region
	making  map[core.ImageID]bool // asked for, neither there nor dropped
	disk    *inbox                // the one disk worker's queue: func(), and nil at the end
	guard   *guard
	pulse   *pulse
	wake    *time.Timer
	outcome *core.Finish
	degrade map[string]string // what is worse than asked for, by subject
	newest  Arranged

	appended uint64 // number of the newest record
	broken   bool   // a record is missing: nothing may be written after it
	final    View   // set before the inbox closes, for whoever asks later
}

// New makes a loop over a fresh core. Nothing is started.
func New(c Config) (*Loop, error) {
	k, err := core.New(c.Core)
	if err != nil {
		return nil, err
	}
	var arranged []runner.ArrangeRecord
	if c.Core.Resume != nil {
		arranged = c.Core.Resume.Arranged
	}
	return &Loop{c: c, core: k, inbox: newInbox(), lives: map[runner.Life]*life{}, arenas: map[runner.Arena]*slotted{}, creates: map[runner.Arena]runner.CreateArena{},
		making: map[core.ImageID]bool{}, images: map[core.ImageID]Region{}, disk: newInbox(), degrade: map[string]string{},
		guard: newGuard(c, arranged), pulse: newPulse(time.Now())}, nil
}

// Run drives the core until it finishes. It returns when every life was reaped
// and every goroutine that it started has ended. A cancelled ctx does not stop
// it: Stop does.
func (l *Loop) Run(ctx context.Context) core.Finish {
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.goEdge(l.diskWorker) // ends at the nil that end posts
	l.pulse.look(time.Now())
	l.pulse.take() // between New and here nobody was waited for
	l.goEdge(l.keepPulse)
	l.handle(core.Begin{})
	for l.outcome == nil {
		<-l.inbox.ready
		l.serve()
	}
	l.end()
	return *l.outcome
}

// serve works off what is in the inbox. What comes after the outcome gives back
// what it brought, and is told to nobody.
func (l *Loop) serve() {
	for _, v := range l.inbox.take() {
		if f, ok := v.(func()); ok {
			f()
		} else {
			l.handle(v.(core.Input))
		}
	}
}

// end waits for every goroutine, still answering who asks for a view, and gives
// everything back. Every life was reaped before; what is left is the disk's.
func (l *Loop) end() {
	if l.wake != nil {
		l.wake.Stop()
	}
	l.cancel(errFinished)
	l.disk.post(nil)
	ended := make(chan struct{})
	go func() { // ends when the others have; waited for below
		l.edges.Wait()
		close(ended)
	}()
	for over := false; !over; {
		select {
		case <-l.inbox.ready:
			l.serve()
		case <-ended:
			over = true
		}
	}
	l.serve()
	l.final = l.view()
	for _, v := range l.inbox.close() {
		if f, ok := v.(func()); ok {
			f()
		}
	}
	for _, r := range l.images {
		l.closeRegion("image", r)
	}
	for _, r := range l.arenas {
		l.closeRegion("arena", r)
	}
}

// Stop asks for an end. From any goroutine, any number of times.
func (l *Loop) Stop(quick bool, reason string) {
	l.inbox.post(core.StopRequested{Quick: quick, Reason: reason})
}

// Checkpoint asks for a checkpoint of the step decided next. From any goroutine.
func (l *Loop) Checkpoint() { l.inbox.post(core.CheckpointRequested{}) }

// Bar has no life started on a device any more. From any goroutine.
func (l *Loop) Bar(device, reason string) {
	l.inbox.post(core.DeviceUnfit{Device: device, Reason: reason})
}

// View gives a picture of the run at one moment, the last one once it is over;
// ok is false when ctx ended first. From any goroutine.
func (l *Loop) View(ctx context.Context) (v View, ok bool) {
	got := make(chan View, 1)
	if !l.inbox.post(func() { got <- l.view() }) {
		return l.final, true
	}
	select {
	case v := <-got:
		return v, true
	case <-ctx.Done():
		return View{}, false
	}
}

// handle feeds one input and acts on the answer; after Finish the core answers
// nothing. From the loop alone.
func (l *Loop) handle(in core.Input) {
	now := time.Now()
	l.pulse.look(now)
	if gone := l.pulse.take(); gone > 0 {
		l.c.Observe(suspension(now, gone))
		l.feed(now, core.Suspended{})
	}
	l.feed(now, in)
}

func (l *Loop) feed(now time.Time, in core.Input) {
	for _, a := range l.core.Handle(now, in) {
		l.act(a)
	}
}

// goEdge starts a goroutine that end waits for.
func (l *Loop) goEdge(f func()) {
	l.edges.Add(1)
	go func() {
		defer l.edges.Done()
		f()
	}()
}
