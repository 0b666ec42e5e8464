package worker

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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

// waitedShare is what part of the time without a core counts: threads that only
// answer pings wait too, a little each time, where one that computes waits for
// nearly all of the time.
const waitedShare = 5

// cpuOf sums the CPU time of a process, its group and all its descendants, and
// a share of the time for which they were ready and had no core: compilers work in
// children, which may be in groups of their own, and on a machine under load a
// busy process may get next to nothing. ok is false where the leader cannot be read.
func cpuOf(leader int) (sum time.Duration, ok bool) {
	for pid := range family(leader, relations()) {
		member := gops.Process{Pid: int32(pid)}
		t, err := member.Times()
		if err != nil {
			continue // it ended meanwhile
		}
		sum += time.Duration((t.User+t.System)*float64(time.Second)) + waited(pid)/waitedShare
		ok = ok || pid == leader
	}
	return sum, ok
}

// waited sums for how long the threads of a process were ready to run and had
// no core; 0 where the kernel does not count it.
func waited(pid int) (sum time.Duration) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0 // the pattern is a good one
	}
	for _, path := range threads {
		var ran, ready int64
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended meanwhile
		}
		if _, err := fmt.Sscan(string(b), &ran, &ready); err == nil { // nanoseconds
			sum += time.Duration(ready)
		}
	}
	return sum
}

// relation is whom a process belongs to.
type relation struct{ pid, parent, group int }

// relations reads those of all processes that can be seen.
func relations() (all []relation) {
	for _, pid := range processes() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		r := relation{pid: pid}
		// "pid (comm) state ppid pgrp ...": comm may hold anything, so cut at the last ')'
		if _, err := fmt.Sscanf(string(b[bytes.LastIndexByte(b, ')')+1:]), " %1s %d %d", new(string), &r.parent, &r.group); err == nil {
			all = append(all, r)
		}
	}
	return all
}

// family picks a process, its group, and the descendants of all of them.
func family(leader int, all []relation) map[int]bool {
	in := map[int]bool{leader: true}
	for grown := true; grown; {
		grown = false
		for _, r := range all {
			if !in[r.pid] && (r.group == leader || in[r.parent]) {
				in[r.pid], grown = true, true
			}
		}
	}
	return in
}
