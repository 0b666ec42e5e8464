package worker

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sweepRounds bounds how often descendants are looked for: a process may fork
// while it is being looked for.
const sweepRounds = 20

// BecomeSubreaper makes orphaned descendants of this process its children, so
// that the sweep after a worker's death can reap them.
func BecomeSubreaper() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// killDescendants ends every process of group pgid but its leader, and every
// process whose environment holds entry (which finds those that left the
// group), and waits for them, within bounds. The leader must be an unreaped
// zombie, so that pgid cannot be another's.
func killDescendants(pgid int, entry string) {
	for range sweepRounds {
		syscall.Kill(-pgid, syscall.SIGKILL)
		found := 0
		for _, pid := range processes() {
			if pid != pgid && killIfOurs(pid, pgid, entry) {
				found++
			}
		}
		if found == 0 {
			return
		}
	}
}

// killIfOurs pins pid first and looks second, so that the process looked at and
// the one signalled are the same even when the number is reused in between.
func killIfOurs(pid, pgid int, entry string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, zombie := groupOf(pid)
	if group != pgid && !hasEntry(pid, entry) {
		return false
	}
	if zombie {
		reapAdopted(fd)
		return false
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return false
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	until := time.Now().Add(time.Second)
	for {
		n, err := unix.Poll(poll, max(int(time.Until(until).Milliseconds()), 0))
		if err != unix.EINTR || n > 0 {
			break
		}
	}
	reapAdopted(fd)
	return true
}

// reapAdopted collects a dead process that became our child; one that has
// another parent is that parent's.
func reapAdopted(fd int) {
	_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
}

// processes lists the numbers of all processes that can be seen.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid > 1 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// groupOf reads a process's group, 0 when it is gone.
func groupOf(pid int) (pgid int, zombie bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// "pid (comm) state ppid pgrp ...": comm may hold anything, so cut at the last ')'
	rest := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(rest) < 3 {
		return 0, false
	}
	pgid, err = strconv.Atoi(string(rest[2]))
	if err != nil {
		return 0, false
	}
	return pgid, rest[0][0] == 'Z' || rest[0][0] == 'X'
}

// hasEntry reports whether the process was started with entry in its environment.
func hasEntry(pid int, entry string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if string(kv) == entry {
			return true
		}
	}
	return false
}

// catches reports whether the process has a handler for s: sent to one that
// has none, SIGUSR2 would kill.
func catches(pid int, s syscall.Signal) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(b, []byte("\nSigCgt:"))
	if !ok {
		return false
	}
	field, _, _ := bytes.Cut(rest, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(field)), 16, 64)
	return err == nil && mask>>(uint(s)-1)&1 == 1
}
