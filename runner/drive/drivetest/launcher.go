package drivetest

import (
	"context"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive"
)

// Launcher starts Processes.
type Launcher struct {
	Before func(ctx context.Context, life runner.Life) error // of a launch; an error fails it
	WarmUp func(ctx context.Context, p *Process) error       // an error fails the warm-up
	Fault  func(p *Process, o runner.Order) Fault
	Wait   func(p *Process, o runner.Order) time.Duration // what an order takes; nil: nothing
	Saving func(p *Process, o runner.Image) time.Duration // what an image takes whose copy is taken; nil: nothing
	How    func(p *Process) int                           // which lies it tells; nil: the first
	Poison runner.Sample                                  // as Worker has it
	Sum    Sum
	Warm   time.Duration // what warm-up takes; 0: a second
	Ladder time.Duration // from a kill to the end
	Reap   time.Duration // from the end to the reaping
	Linger bool          // lanes outlive their processes, as one does that a stranger holds

	mu      sync.Mutex // guards below
	all     []*Process
	warming int
	most    int
}

// Launch starts one life.
func (l *Launcher) Launch(ctx context.Context, life runner.Life, device string) (drive.Process, error) {
	if l.Before != nil {
		if err := l.Before(ctx, life); err != nil {
			return nil, err
		}
	}
	p := &Process{Device: device, life: life, launcher: l, orders: make(chan ask, 64), replies: make(chan reply, 64), broken: make(chan error, 1),
		closed: make(chan struct{}), gone: make(chan struct{}), done: make(chan struct{})}
	w := &Worker{ID: life.Worker, Sum: &l.Sum, Gone: p.gone, Died: p.Die, Poison: l.Poison}
	if l.Saving != nil {
		w.Saving = func(o runner.Image) { p.pass(l.Saving(p, o)) }
	}
	if l.Wait != nil {
		w.Wait = func(o runner.Order) { p.pass(l.Wait(p, o)) }
	}
	if l.How != nil {
		w.How = l.How(p)
	}
	if l.Fault != nil {
		w.Fault = func(o runner.Order) Fault { return l.Fault(p, o) }
	}
	l.mu.Lock()
	l.all = append(l.all, p)
	l.mu.Unlock()
	go p.run(w) // ends with the process; done says so
	return p, nil
}

func (l *Launcher) gate(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warming += n
	l.most = max(l.most, l.warming)
}

// MostWarming says how many lives warmed up at once, at the most.
func (l *Launcher) MostWarming() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

// Sweep closes what dead processes sent and nobody took, once the loop is over.
func (l *Launcher) Sweep() {
	for _, p := range l.All() {
		for len(p.replies) > 0 {
			closeFile(ask{file: (<-p.replies).file})
		}
	}
}

// All gives every process that was started, in order.
func (l *Launcher) All() []*Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Process(nil), l.all...)
}

// Device gives what a life was started on; empty where there was no such life.
func (l *Launcher) Device(id runner.Life) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.all {
		if p.life == id {
			return p.Device
		}
	}
	return ""
}
