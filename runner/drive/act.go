package drive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// Why a context of the loop ends.
var (
	errFinished   = errors.New("the run is over")
	errReaped     = errors.New("the life is over")
	errConfigured = errors.New("the launch is over")
)

// act carries out one action. From the loop alone; it never waits.
func (l *Loop) act(a core.Action) {
	switch a := a.(type) {
	case core.Launch:
		l.launch(a.Life, a.Device)
	case core.WarmUp:
		l.warmUp(a.Life)
	case core.Send:
		l.send(a)
	case core.Kill:
		l.kill(a)
	case core.MakeArena:
		l.makeArena(a)
	case core.HoldArena:
		l.arenas[a.Arena], l.offered = l.offered, nil
	case core.MakeImage:
		l.makeImage(a)
	case core.OpenImage:
		l.openImage(a)
	case core.DropImage:
		l.dropImage(a)
	case core.Publish:
		l.publish(a)
	case core.Unpublish:
		l.unpublish(a)
	case core.Append:
		l.append(a)
	case core.Sync:
		l.sync()
	case core.Arrange:
		l.arrange(a)
	case core.Assign:
		l.assign(a)
	case core.Judge:
		l.judge(a)
	case core.Wake:
		l.wakeAt(a.At)
	case core.Emit:
		l.c.Observe(a.Event)
	case core.Finish:
		l.outcome = &a
	default:
		panic(fmt.Sprintf("drive: unknown action %T", a)) // a bug: the set is closed
	}
}

// append writes a record. After the first that could not be written, none is:
// the journal must not have a hole.
func (l *Loop) append(a core.Append) {
	if l.broken {
		return
	}
	if err := l.c.Journal.Append(a.Record); err != nil {
		l.broken = true
		l.inbox.post(core.JournalFailed{Err: fmt.Errorf("append record %d: %w", a.Number, err)})
		return
	}
	l.appended = a.Number
}

// sync makes durable what was appended; the answer names just that.
func (l *Loop) sync() {
	if l.broken {
		return
	}
	upTo := l.appended
	l.c.Journal.Sync(func(err error) {
		if err != nil {
			l.inbox.post(core.JournalFailed{Err: err})
			return
		}
		l.inbox.post(core.Durable{UpTo: upTo})
	})
}

// wakeAt replaces the one timer. Its goroutine is the runtime's; it only posts.
func (l *Loop) wakeAt(at time.Time) {
	if l.wake != nil {
		l.wake.Stop()
	}
	l.wake = time.AfterFunc(time.Until(at), func() { l.inbox.post(core.Tick{}) })
}

// arrange asks the scheduler, judges its answer, and has the built-in answer
// for it where it must. There is one such question at a time.
func (l *Loop) arrange(a core.Arrange) {
	pooled, ok := l.guard.scheduler.(PoolScheduler)
	if !ok {
		l.askArrange(a, func(ctx context.Context, s Scheduler) (any, error) { return s.Arrange(ctx, a.Epoch, a.Count, a.Left) })
		return
	}
	l.goEdge(func() { // ends with the sorting
		pool, err := l.guard.complete(l.ctx, a.Epoch, poolOf(l.c.Pool, a.Count, a.Left))
		l.inbox.post(func() {
			if l.outcome == nil {
				l.askArrange(a, func(ctx context.Context, _ Scheduler) (any, error) {
					if err != nil {
						return nil, err
					}
					return pooled.ArrangeOf(ctx, a, pool)
				})
			}
		})
	})
}

// askArrange asks, and has the answer judged.
func (l *Loop) askArrange(a core.Arrange, question func(context.Context, Scheduler) (any, error)) {
	l.ask("arrange", question, func(answer any, err error) {
		samples, _ := answer.([]runner.Sample)
		if err == nil {
			err = l.guard.judge(a.Epoch, a.Count, a.Left, samples)
		}
		if err == nil {
			l.arranged(a, samples, l.guard.own)
			return
		}
		if !l.guard.own && !errors.Is(err, ErrDeclined) { // the built-in itself is refused where others' order came before
			l.refuse("arrange", err)
		}
		l.goEdge(func() { // ends with the sorting
			samples, err := l.guard.complete(l.ctx, a.Epoch, min(a.Count, a.Left))
			l.inbox.post(func() {
				if err != nil {
					l.refuse("arrange", err)
				}
				l.arranged(a, samples, true)
			})
		})
	})
}

// arranged gives the core a part of an order, and notes whose it is.
func (l *Loop) arranged(a core.Arrange, samples []runner.Sample, builtin bool) {
	by := l.guard.scheduler.Name()
	if builtin {
		by = l.guard.builtin.Name()
	}
	l.newest = Arranged{By: by, Builtin: builtin, Epoch: a.Epoch, Samples: len(samples), At: time.Now()}
	l.guard.took(a.Epoch, samples)
	l.handle(core.Arranged{Epoch: a.Epoch, Samples: samples})
}

func (l *Loop) assign(a core.Assign) {
	l.ask("assign", func(ctx context.Context, s Scheduler) (any, error) {
		return s.Assign(ctx, a.Row, a.Free)
	}, func(answer any, err error) {
		target, _ := answer.(runner.Worker)
		ok := false
		for _, f := range a.Free {
			ok = ok || f == target
		}
		switch {
		case errors.Is(err, ErrDeclined):
			target, err = a.Free[0], nil
		case err == nil && !ok:
			err = fmt.Errorf("row %d: %s is not among the free targets %v", a.Row.Row, target, a.Free)
		}
		if err != nil {
			l.refuse("assign", err)
			target = a.Free[0]
		}
		l.handle(core.Assigned{Row: a.Row.Row, Target: target})
	})
}

// ask calls the scheduler in a goroutine under the deadline; then is run by the
// loop. A scheduler that does not return is left behind at the deadline; its
// late answer goes nowhere.
func (l *Loop) ask(what string, call func(context.Context, Scheduler) (any, error), then func(any, error)) {
	type answer struct {
		v   any
		err error
	}
	got := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(l.ctx, l.c.SchedulerDeadline)
	go func() { // ends when the scheduler returns; nobody waits: it may be a stranger's
		v, err := call(ctx, l.guard.scheduler)
		got <- answer{v, err}
	}()
	l.goEdge(func() {
		defer cancel()
		var r answer
		select {
		case r = <-got:
		case <-ctx.Done():
			r.err = fmt.Errorf("%s: no answer within %s", what, l.c.SchedulerDeadline)
		}
		l.inbox.post(func() {
			if l.outcome == nil { // else the loop no longer starts anything
				then(r.v, r.err)
			}
		})
	})
}

// refuse counts a bad answer and shows it.
func (l *Loop) refuse(what string, err error) {
	l.guard.refused++
	l.degrade["scheduler"] = fmt.Sprintf("%s: %d answers refused, last: %s", l.guard.scheduler.Name(), l.guard.refused, err)
	l.c.Observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "scheduler refused",
		Message: fmt.Sprintf("%s %s: %v; the built-in's answer is used", l.guard.scheduler.Name(), what, err)})
}
