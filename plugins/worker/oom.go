package worker

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// oomCounters are the kernel's counts of processes killed for memory; -1 is
// unknown. They only rise.
type oomCounters struct {
	cgroup int64 // in the worker's memory cgroup
	kernel int64 // on the machine
}

// oomWatch holds the files to read and what they said at the start. The files
// are found while the process lives: a zombie has left its cgroup.
type oomWatch struct {
	cgroup, kernel string
	before         oomCounters
	log            kernelLog
}

// watchOOM finds the counters of process pid, below root ("/" but in tests).
func watchOOM(root string, pid int) oomWatch {
	w := oomWatch{kernel: filepath.Join(root, "proc/vmstat"), log: openKernelLog(root)}
	for _, path := range oomFiles(root, pid) {
		if readCounter(path, "oom_kill") >= 0 {
			w.cgroup = path
			break
		}
	}
	w.before = w.read()
	return w
}

func (w oomWatch) read() oomCounters {
	return oomCounters{cgroup: readCounter(w.cgroup, "oom_kill"), kernel: readCounter(w.kernel, "oom_kill")}
}

// oomFiles names the files that may hold the cgroup's counter, best first. In
// a container the path in /proc may lie outside what is mounted, so the mount's
// root comes second.
func oomFiles(root string, pid int) (paths []string) {
	b, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		part := strings.SplitN(line, ":", 3)
		if len(part) != 3 {
			continue
		}
		switch {
		case part[0] == "0" && part[1] == "": // version 2
			paths = append(paths,
				filepath.Join(root, "sys/fs/cgroup", part[2], "memory.events"),
				filepath.Join(root, "sys/fs/cgroup/memory.events"))
		case strings.Contains(","+part[1]+",", ",memory,"): // version 1
			paths = append([]string{
				filepath.Join(root, "sys/fs/cgroup/memory", part[2], "memory.oom_control"),
				filepath.Join(root, "sys/fs/cgroup/memory/memory.oom_control")}, paths...)
		}
	}
	return paths
}

// readCounter finds "name N" in a file of such lines; -1 when it is not there.
func readCounter(path, name string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	for in := bufio.NewScanner(bytes.NewReader(b)); in.Scan(); {
		var n int64
		if rest, ok := strings.CutPrefix(in.Text(), name+" "); ok {
			if _, err := fmt.Sscan(rest, &n); err == nil {
				return n
			}
		}
	}
	return -1
}

// oomKilled judges one death: only SIGKILL can be one, and then the counters
// tell. The machine's counter may have risen for somebody else, but together
// with a SIGKILL of unknown sender it counts where the cgroup's is not known.
func oomKilled(s syscall.Signal, before, after oomCounters) string {
	switch {
	case s != syscall.SIGKILL:
		return "no"
	case before.cgroup >= 0 && after.cgroup >= 0:
		return yesNo(after.cgroup > before.cgroup)
	case before.kernel >= 0 && after.kernel >= 0:
		return yesNo(after.kernel > before.kernel)
	}
	return "unknown"
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
