package admin

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Process names one process for ever: a pid is used again, a pid with its start
// time, on one boot and in one pid namespace, is not.
type Process struct {
	Pid        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"` // since boot
	BootID     string `json:"boot_id"`
	Namespace  string `json:"pid_namespace"`
}

// Self names this process.
func Self() (Process, error) { return identify(os.Getpid()) }

func identify(pid int) (Process, error) {
	p, err := here()
	if err != nil {
		return p, err
	}
	p.Pid = pid
	p.StartTicks, err = startTicks(pid)
	return p, err
}

// here gives boot and pid namespace.
func here() (Process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Process{}, runner.Errorf(runner.Unavailable, "identify process: %w", err)
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return Process{}, runner.Errorf(runner.Unavailable, "identify process: %w", err)
	}
	return Process{BootID: strings.TrimSpace(string(boot)), Namespace: ns}, nil
}

// errZombie is of a process that has ended and was not waited for.
var errZombie = errors.New("it is dead, not yet reaped")

// startTicks reads field 22 of /proc/<pid>/stat. The name before it may hold
// spaces and brackets, so fields are counted from the last bracket.
func startTicks(pid int) (uint64, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	if state := fields[0]; state == "Z" || state == "X" {
		return 0, runner.Errorf(runner.NotFound, "identify process %d: %w", pid, errZombie)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// stat gives the fields of /proc/<pid>/stat from the third on.
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, runner.Errorf(runner.NotFound, "identify process %d: %w", pid, err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return nil, runner.Errorf(runner.Internal, "identify process %d: want 52 fields in stat, got %d", pid, len(fields)+2)
	}
	return fields, nil
}

// State says in words what the process does now.
func (p Process) State() string {
	switch p.Look() {
	case Elsewhere:
		return "in another pid namespace, where it cannot be seen from here"
	case Dead:
		return "gone"
	}
	fields, err := stat(p.Pid)
	if err != nil {
		return "gone"
	}
	words := map[string]string{"R": "running", "S": "sleeping", "D": "waiting in the kernel, for a disk or a device", "T": "stopped by a signal: `kill -CONT` lets it go on", "t": "stopped by a debugger"}
	if what, ok := words[fields[0]]; ok {
		return what
	}
	return "in state " + fields[0]
}

// Life is what can be told of a process from here.
type Life int

// What a Process may be.
const (
	Alive Life = iota
	Dead
	Elsewhere // in another pid namespace on this boot: it cannot be seen from here
)

// Look tells whether the process still lives.
func (p Process) Look() Life {
	at, err := here()
	if err != nil || p.Pid <= 0 {
		return Dead
	}
	if at.BootID != p.BootID {
		return Dead
	}
	if at.Namespace != p.Namespace {
		return Elsewhere
	}
	now, err := startTicks(p.Pid)
	if err != nil || now != p.StartTicks {
		return Dead
	}
	return Alive
}
