package up

import (
	"context"
	"fmt"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// releaseEvery is how often a GPU is looked at while its memory is waited for.
const releaseEvery = 200 * time.Millisecond

// ended is how a worker's last life left its GPU.
type ended struct {
	pid int // 0: not known
	at  time.Time
}

// releaseLimit is how much longer a launch may take where a GPU's memory is
// waited for.
func (u *up) releaseLimit() time.Duration {
	if u.config.Workers.Device == placement.CPU {
		return 0
	}
	return u.config.Failure.Release.D()
}

// awaitRelease returns once a GPU has given back what the worker's last life
// held, or the limit is over, which is told. A first life waits for nothing.
// The error is ctx's.
func (l *launcher) awaitRelease(ctx context.Context, life runner.Life) error {
	u, last := l.u, l.last(life.Worker)
	u.setPhase(life.Worker, "")
	u.mu.Lock()
	watch := u.watch
	u.mu.Unlock()
	limit := u.releaseLimit()
	if watch == nil || last.at.IsZero() || limit == 0 {
		return nil
	}
	return u.await(ctx, life.Worker, limit, func() (bool, string) {
		return released(deviceIn(watch.Devices(time.Now()), u.deviceOf(life.Worker)), last, u.memoryOf(life.Worker))
	})
}

// await looks until it is released or limit is over.
func (u *up) await(ctx context.Context, w runner.Worker, limit time.Duration, look func() (bool, string)) error {
	late, tick := time.NewTimer(limit), time.NewTicker(releaseEvery)
	defer late.Stop()
	defer tick.Stop()
	defer u.setPhase(w, "")
	for told := ""; ; {
		ok, why := look()
		if ok {
			return nil
		}
		if told != why {
			u.setPhase(w, "waits for GPU memory: "+why)
			told = why
		}
		select {
		case <-ctx.Done():
			return runner.Errorf(runner.Canceled, "launch %v: %w", w, context.Cause(ctx))
		case <-late.C:
			u.warn("gpu memory", fmt.Sprintf("%v is started again although, %s after its death, %s", w, limit, why))
			return nil
		case <-tick.C:
		}
	}
}

// released judges whether what a dead process held of a GPU is free again, by a
// sample that is newer than its death: the process is listed no more, and what
// the next one needs is free.
func released(d admin.DeviceStatus, last ended, need uint64) (ok bool, why string) {
	if d.Status == admin.Unknown || d.At == nil {
		return false, "nothing is known of the GPU: " + d.Detail
	}
	if !d.At.After(last.at) {
		return false, "the GPU was not looked at since"
	}
	for _, p := range d.Processes {
		if last.pid != 0 && p.Pid == last.pid {
			return false, fmt.Sprintf("the driver still lists pid %d", last.pid)
		}
	}
	if d.MemoryUsedBytes == nil || d.MemoryTotalBytes == nil {
		return true, ""
	}
	if free := *d.MemoryTotalBytes - *d.MemoryUsedBytes; free < need {
		return false, fmt.Sprintf("%d MiB of it are free, and it needs %d MiB", free>>20, need>>20)
	}
	return true, ""
}

// last gives how the worker's last life ended; a zero time where there was none.
func (l *launcher) last(w runner.Worker) ended {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.ended[w]
	if p := l.lives[w]; p != nil {
		if at := p.p.Report().At; at.After(last.at) {
			last = ended{p.p.Pid(), at}
		}
	}
	return last
}

func deviceIn(all []admin.DeviceStatus, uuid string) admin.DeviceStatus {
	for _, d := range all {
		if d.UUID == uuid {
			return d
		}
	}
	return admin.DeviceStatus{Status: admin.Unknown, Detail: "it is not watched"}
}

// memoryOf is what the plan says that a worker's next life takes of its device:
// a target's arena outlived the last one where it lies there.
func (u *up) memoryOf(w runner.Worker) uint64 {
	for _, placed := range u.plan.Workers {
		if placed.Name == w {
			return placed.MemoryBytes - placed.Memory.Slots
		}
	}
	return 0
}

// setPhase keeps what a worker that starts is at, for status.
func (u *up) setPhase(w runner.Worker, phase string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.phases[w] = phase
}
