package worker

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"time"

	gops "github.com/shirou/gopsutil/v3/process"

	"github.com/dflash-runner/dflash-runner/runner/hang"
)

// Vitals looks at the worker's process; where deep also at the CPU time that
// its whole group has taken so far. It needs nothing of the worker.
func (p *Process) Vitals(deep bool) hang.Vitals {
	c := p.live()
	v := hang.Vitals{Heartbeat: p.SignAge(), State: stateOf(c.pid)}
	if deep {
		v.CPU, v.Counted = cpuOf(c.pid)
	}
	return v
}

// stateOf says what the kernel says of a process.
func stateOf(pid int) hang.State {
	leader := gops.Process{Pid: int32(pid)}
	states, err := leader.Status()
	switch {
	case err != nil:
		return hang.Zombie // it is gone: whoever reaps it says more
	case slices.Contains(states, gops.Stop) && traced(pid):
		return hang.Traced
	case slices.Contains(states, gops.Stop):
		return hang.Stopped
	case slices.Contains(states, gops.Blocked):
		return hang.Blocked
	case slices.Contains(states, gops.Zombie):
		return hang.Zombie
	}
	return hang.Live
}

// traced reports whether it is a debugger that holds a stopped process, for
// which gopsutil has the same word.
func traced(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && bytes.Contains(b, []byte("\nState:\tt"))
}

// cpuOf sums the CPU time of a process group: compilers work in children. ok is
// false where the leader cannot be read.
func cpuOf(pgid int) (sum time.Duration, ok bool) {
	for _, pid := range processes() {
		if group, _ := groupOf(pid); group != pgid {
			continue
		}
		member := gops.Process{Pid: int32(pid)}
		t, err := member.Times()
		if err != nil {
			continue // it ended meanwhile
		}
		sum += time.Duration((t.User + t.System) * float64(time.Second))
		ok = ok || pid == pgid
	}
	return sum, ok
}
