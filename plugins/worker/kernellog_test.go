package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestJudgeKernel: what is about the process, and nothing else.
func TestJudgeKernel(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		want kernelSaid
	}{
		"out of memory":             {"Out of memory: Killed process 77 (python3) total-vm:9kB", kernelSaid{OOM: true}},
		"a cgroup out of memory":    {"Memory cgroup out of memory: Killed process 77 (python3), UID 0", kernelSaid{OOM: true}},
		"the constraint":            {"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=77,uid=0", kernelSaid{OOM: true}},
		"another killed":            {"Out of memory: Killed process 777 (python3)", kernelSaid{}},
		"a fault":                   {"NVRM: Xid (PCI:0000:1b:00): 31, pid=77, name=python3, Ch 00000008, MMU Fault", kernelSaid{Xid: 31}},
		"a fault, quoted":           {"NVRM: Xid (PCI:0000:1b:00): 13, pid='77', name=python3", kernelSaid{Xid: 13}},
		"a fault that names nobody": {"NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", kernelSaid{Xid: 79}},
		"an unknown process":        {"NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", kernelSaid{Xid: 79}},
		"a stranger's fault":        {"NVRM: Xid (PCI:0000:1b:00): 31, pid=78, name=python3", kernelSaid{}},
		"nothing of it":             {"usb 1-1: new device 77", kernelSaid{}},
	} {
		got := judgeKernel([]kernelRecord{{0, "before"}, {time.Hour, c.line}, {time.Hour, "after"}}, 77, time.Hour+time.Second)
		if got.OOM != c.want.OOM || got.Xid != c.want.Xid || (len(got.Lines) == 1) != (c.want.OOM || c.want.Xid != 0) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	if got := judgeKernel([]kernelRecord{{0, "NVRM: Xid (PCI:0): 79, lost"}}, 77, kernelNear+1); got.Xid != 0 {
		t.Errorf("an old fault that names nobody: got %+v", got)
	}
	if got := judgeKernel([]kernelRecord{{0, "NVRM: Xid (PCI:0): 79, lost"}, {0, "NVRM: Xid (PCI:0): 31, pid=77"}}, 77, 0); got.Xid != 31 || !got.Named {
		t.Errorf("the one that names it counts: got %+v", got)
	}
	flood := judgeKernel(slices.Repeat([]kernelRecord{{0, "NVRM: Xid (PCI:0): 31, pid=77" + strings.Repeat("x", 500)}}, 50), 77, 0)
	if len(flood.Lines) != kernelLines || len(flood.Lines[0]) > kernelWidth+20 {
		t.Errorf("kept %d lines of %d bytes", len(flood.Lines), len(flood.Lines[0]))
	}
}

// TestKernelLog: what was there before the life is not its own.
func TestKernelLog(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "dev", "kmsg")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(s)
		}
		if err != nil || f.Close() != nil {
			t.Fatal(err)
		}
	}
	write("6,1,100,-;Out of memory: Killed process 77 (old)\n")
	w := watchOOM(root, 77)
	write("6,2,200,-;NVRM: Xid (PCI:0): 31, pid=77\n SUBSYSTEM=pci;x\n6,3,300,-;a; b\n")
	if got := fmt.Sprint(w.log.since()); got != "[{200000 NVRM: Xid (PCI:0): 31, pid=77} {300000 a; b}]" {
		t.Errorf("got %s", got)
	}
	if got := openKernelLog(t.TempDir()).since(); got != nil {
		t.Errorf("where there is none: got %v", got)
	}
}

// TestJudgeWithKernel: the kernel's words make the cause plain.
func TestJudgeWithKernel(t *testing.T) {
	xid := kernelSaid{Lines: []string{"NVRM: Xid (PCI:0): 79"}, Xid: 79, Named: true}
	for name, c := range map[string]struct {
		e       evidence
		cause   runner.Cause
		message string
		hint    string
	}{
		"CUDA error with its Xid":       {evidence{Status: exitStatus{Ended: true, Code: 1, Kernel: xid}, Tail: []string{"CUDA error: unspecified launch failure"}}, runner.CauseCUDA, "(the kernel's log has Xid 79)", "Xid 79: the GPU has fallen off the bus"},
		"a crash after a fault":         {evidence{Status: exitStatus{Ended: true, Code: -1, Signal: syscall.SIGABRT, Kernel: xid}, Phase: "running"}, runner.CauseCUDA, "after a fault of its GPU: NVRM: Xid", "Xid 79"},
		"killed from outside besides":   {evidence{Status: exitStatus{Ended: true, Code: -1, Signal: syscall.SIGKILL, OOM: "no", Kernel: xid}}, runner.CauseSignal, "SIGKILL", "outside"},
		"killed for memory, in the log": {evidence{Status: exitStatus{Ended: true, Code: -1, Signal: syscall.SIGKILL, OOM: "yes"}}, runner.CauseOOM, "killed by the kernel for memory", "memory"},
		"a number nobody knows":         {evidence{Status: exitStatus{Ended: true, Code: 1, Kernel: kernelSaid{Lines: []string{"x"}, Xid: 999, Named: true}}}, runner.CauseCUDA, "fault of its GPU", "Xid 999: look it up"},
	} {
		f := report(c.e)
		if f.Cause != c.cause || !strings.Contains(f.Message, c.message) || !strings.Contains(f.Hint, c.hint) || len(f.Kernel) != len(c.e.Status.Kernel.Lines) {
			t.Errorf("%s: got %+v", name, f)
		}
	}
}
