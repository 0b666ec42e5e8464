package worker

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestReport(t *testing.T) {
	exit := func(code int) exitStatus { return exitStatus{Ended: true, At: time.Unix(9, 0), Code: code, OOM: "no"} }
	signal := func(s syscall.Signal) exitStatus {
		return exitStatus{Ended: true, At: time.Unix(9, 0), Code: -1, Signal: s, OOM: "no", Peak: 3 << 30}
	}
	oom := signal(syscall.SIGKILL)
	oom.OOM = "yes"
	python := tracebackFinder{kind: traceException, lines: []string{"Traceback (most recent call last):", "  File x", "ValueError: no"}}
	dump := tracebackFinder{kind: traceDump, lines: []string{"Current thread 0x1 (most recent call first):"}}
	late := &verdict{runner.CauseDeadline, "no answer", "wait longer"}
	for _, c := range []struct {
		name    string
		e       evidence
		cause   runner.Cause
		message string // part of it
		hint    string // part of it
		forced  bool
	}{
		{"no more files", evidence{StartErr: fmt.Errorf("start: %w", os.NewSyscallError("pipe2", syscall.EMFILE))}, runner.CauseLaunch, "too many open files", "ulimit -n", false},
		{"no more processes", evidence{StartErr: &os.PathError{Op: "fork/exec", Path: "python", Err: syscall.EAGAIN}}, runner.CauseLaunch, "never started", "ulimit -u", false},
		{"never started", evidence{StartErr: errors.New("no such file")}, runner.CauseLaunch, "never started: no such file", "doctor", false},
		{"clean", evidence{Status: exit(0), Asked: true}, "", "", "", false},
		{"clean, though we had something against it", evidence{Status: exit(0), Asked: true, Verdict: late, Forced: true}, "", "", "", false},
		{"exit 0 unasked", evidence{Status: exit(0), Phase: "running"}, runner.CauseExit, "code 0 without being asked, during running", "log", false},
		{"exit 3", evidence{Status: exit(3), Phase: "running", Tail: []string{"a", "b"}}, runner.CauseExit, "ended with code 3 during running: b", "log", false},
		{"reaped by somebody else", evidence{Status: exit(-1), Phase: "running"}, runner.CauseExit, "status was taken", "bug", false},
		{"exit 70", evidence{Status: exit(70), Trace: python}, runner.CauseProtocol, "lane's rules", "versions", false},
		{"an exception", evidence{Status: exit(1), Trace: python}, runner.CausePython, "ValueError: no", "traceback", false},
		{"a dump is no exception", evidence{Status: exit(1), Phase: "x", Trace: dump}, runner.CauseExit, "code 1", "", false},
		{"a module is missing", evidence{Status: exit(1), Trace: tracebackFinder{kind: traceException, lines: []string{"ModuleNotFoundError: torch"}}},
			runner.CausePython, "ModuleNotFoundError", "remake it", false},
		{"memory in Python", evidence{Status: exit(1), Trace: tracebackFinder{kind: traceException, lines: []string{"MemoryError"}}},
			runner.CausePython, "MemoryError", "memory is full", false},
		{"a CUDA fault by exception", evidence{Status: exit(1), Trace: tracebackFinder{kind: traceException,
			lines: []string{"torch.AcceleratorError: CUDA error: an illegal memory access"}}}, runner.CauseCUDA, "illegal memory access", "memory is full", false},
		{"a CUDA fault by abort", evidence{Status: signal(syscall.SIGABRT), Tail: []string{"x", "CUDA error: unspecified launch failure", "y"}},
			runner.CauseCUDA, "launch failure", "Xid", false},
		{"SIGSEGV", evidence{Status: signal(syscall.SIGSEGV), Phase: "running"}, runner.CauseSignal, "killed by SIGSEGV during running", "native", false},
		{"SIGBUS", evidence{Status: signal(syscall.SIGBUS)}, runner.CauseSignal, "SIGBUS", "/dev/shm", false},
		{"SIGTERM from outside", evidence{Status: signal(syscall.SIGTERM)}, runner.CauseSignal, "SIGTERM", "supervisor instead", false},
		{"SIGKILL from outside", evidence{Status: signal(syscall.SIGKILL)}, runner.CauseSignal, "SIGKILL", "outside", false},
		{"SIGKILL from outside before ours", evidence{Status: signal(syscall.SIGKILL), Verdict: late}, runner.CauseSignal, "SIGKILL", "", false},
		{"by the kernel for memory", evidence{Status: oom, Phase: "running"}, runner.CauseOOM, "peak 3072 MiB", "plan", false},
		{"by us", evidence{Status: signal(syscall.SIGKILL), Forced: true, Verdict: late}, runner.CauseDeadline, "no answer", "wait longer", true},
		{"by us, no reason given", evidence{Status: signal(syscall.SIGKILL), Forced: true}, runner.CauseKilled, "by the supervisor", "", true},
		{"by us, and nobody knows what to do", evidence{Status: signal(syscall.SIGKILL), Forced: true, Verdict: &verdict{runner.CausePython, "produce failed", ""}}, runner.CausePython, "produce failed", "log", true},
		{"its own exit just before ours", evidence{Status: exit(1), Forced: true, Verdict: late, Trace: python}, runner.CausePython, "ValueError", "", false},
		{"its own crash just before ours", evidence{Status: signal(syscall.SIGSEGV), Forced: true, Verdict: late}, runner.CauseSignal, "SIGSEGV", "", false},
		{"SIGTERM that we sent", evidence{Status: signal(syscall.SIGTERM), Asked: true}, runner.CauseKilled, "by the supervisor", "", false},
	} {
		c.e.Life = runner.Life{Worker: runner.Worker{Role: runner.Target, Rank: 2}, Generation: 5}
		c.e.LastSign = 1500 * time.Millisecond
		f := report(c.e)
		if f.Cause != c.cause || !strings.Contains(f.Message, c.message) || !strings.Contains(f.Hint, c.hint) || f.ForcedBySelf != c.forced {
			t.Errorf("%s: cause %q, message %q, hint %q, forced %v", c.name, f.Cause, f.Message, f.Hint, f.ForcedBySelf)
		}
		if f.Worker != c.e.Life.Worker || f.Generation != 5 || f.Role != runner.Target || f.LastSignMS != 1500 {
			t.Errorf("%s: %+v", c.name, f)
		}
		if f.Cause != "" && f.Message == "" {
			t.Errorf("%s: a cause without words", c.name)
		}
	}
	if f := report(evidence{Status: exit(1), LastSign: -1}); f.LastSignMS != -1 || f.ExitCode != 1 || f.At != time.Unix(9, 0) {
		t.Errorf("no sign of life: %+v", f)
	}
}

// TestI8_NoStrangerIsSignalled: from the moment a child is reaped, when its
// number may become a stranger's, nothing is sent to it any more.
func TestI8_NoStrangerIsSignalled(t *testing.T) {
	c, err := startChild(childSpec{argv: []string{"true"}, env: []string{"PATH=/usr/bin:/bin"}, nonce: "stranger", lane: true, lineLimit: maxLine,
		stdout: func([]byte, bool) {}, stderr: func([]byte, bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	<-c.done
	sent := 0
	c.mu.Lock()
	c.kill = func(int, syscall.Signal) error { sent++; return nil }
	c.mu.Unlock()
	p := &Process{spec: Spec{Logger: hclog.NewNullLogger(), Grace: time.Second}, child: c, done: make(chan struct{})}
	close(p.done)
	p.Kill(runner.CauseKilled, "late", "")
	p.Dump()
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if sent != 0 {
		t.Errorf("%d signals sent to the number of a reaped process", sent)
	}
	p.Lane().Close()
}

// TestI8_NeighbourIsNotSwept: the sweep after one death leaves alone a process
// with another life's mark, though its group lives beside.
func TestI8_NeighbourIsNotSwept(t *testing.T) {
	start := func(nonce, program string, args ...string) *child {
		c, err := startChild(childSpec{argv: append([]string{program}, args...), env: []string{"PATH=/usr/bin:/bin"}, nonce: nonce,
			lineLimit: maxLine, stdout: func([]byte, bool) {}, stderr: func([]byte, bool) {}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	neighbour := start("run:target/0.11", "sleep", "60")
	one := start("run:target/0.1", "true")
	<-one.done
	select {
	case <-neighbour.exited:
		t.Error("the neighbour was swept away")
	default:
	}
	if !neighbour.signal(syscall.SIGKILL, true) {
		t.Error("a live child could not be signalled")
	}
	<-neighbour.done
}
