package host

import (
	"context"
	"fmt"
	"time"

	gops "github.com/shirou/gopsutil/v3/process"
	"google.golang.org/grpc"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// vitalsWait bounds how long a plugin may take to say what it holds: what it does
// not say is not known, and no strike.
const vitalsWait = time.Second

// Vitals are what a plugin's process holds. What is 0 is not known.
type Vitals struct {
	MemoryBytes uint64 // resident
	Threads     int    // as the kernel counts them
	Goroutines  int    // as a plugin in Go says
	Started     int    // threads that a plugin in Python knows of
}

// Limits are how much of that a plugin may hold; 0 is no limit.
type Limits struct {
	MemoryBytes uint64
	Tasks       int // goroutines, or threads
}

// over says what of a plugin is more than it may hold, or nothing.
func (l Limits) over(v Vitals) error {
	tasks := []struct {
		name  string
		count int
	}{{"goroutines", v.Goroutines}, {"threads", v.Threads}}
	if l.MemoryBytes > 0 && v.MemoryBytes > l.MemoryBytes {
		return runner.Errorf(runner.Exhausted, "vitals: memory: want at most %d MiB, got %d MiB", l.MemoryBytes>>20, v.MemoryBytes>>20)
	}
	for _, t := range tasks {
		if l.Tasks > 0 && t.count > l.Tasks {
			return runner.Errorf(runner.Exhausted, "vitals: %s: want at most %d, got %d", t.name, l.Tasks, t.count)
		}
	}
	return nil
}

// String gives what is known: "31 MiB, 9 threads, 12 goroutines".
func (v Vitals) String() string {
	said := fmt.Sprintf("%d MiB, %d threads", v.MemoryBytes>>20, v.Threads)
	if v.Goroutines > 0 {
		said += fmt.Sprintf(", %d goroutines", v.Goroutines)
	}
	return said
}

// vitals looks at the process, and asks it where it offers that.
func (p *process) vitals(ctx context.Context) (v Vitals) {
	leader := gops.Process{Pid: int32(p.hosted.Pid())}
	if m, err := leader.MemoryInfo(); err == nil { // else it is gone: watch says so
		v.MemoryBytes = m.RSS
	}
	if n, err := leader.NumThreads(); err == nil {
		v.Threads = int(n)
	}
	if !p.info.GetVitals() {
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, vitalsWait)
	defer cancel()
	reply, err := p.ask.Vitals(ctx, &schedulerv1.VitalsRequest{}, grpc.WaitForReady(false))
	if err != nil {
		return v
	}
	v.Goroutines, v.Started = int(reply.GetGoroutines()), int(reply.GetThreads())
	return v
}

// Vitals says what the plugin holds now; zero where it does not run.
func (p *Plugin) Vitals(ctx context.Context) Vitals {
	p.mu.Lock()
	running := p.process
	p.mu.Unlock()
	if running == nil {
		return Vitals{}
	}
	return running.vitals(ctx)
}

// look keeps what a process holds for the state, and ends one that holds more
// than it may. It ends with the process or the plugin.
func (p *Plugin) look(running *process) {
	every := time.NewTicker(p.o.Look)
	defer every.Stop()
	for {
		v := running.vitals(p.life)
		p.mu.Lock()
		if p.process != running {
			p.mu.Unlock()
			return
		}
		p.state.Vitals = v
		p.mu.Unlock()
		if err := p.o.Limits.over(v); err != nil {
			p.end(running, err.Error())
			return
		}
		select {
		case <-running.hosted.Exited():
			return
		case <-p.life.Done():
			return
		case <-every.C:
		}
	}
}
