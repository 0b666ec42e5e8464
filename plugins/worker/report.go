package worker

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// exitBrokenLane is the code with which a worker ends itself when the
// supervisor sent it a frame that breaks the lane's rules.
const exitBrokenLane = 70

// verdict is why this supervisor ended a process; the first one counts.
type verdict struct {
	Cause   runner.Cause
	Message string
	Hint    string
}

// evidence is all that is known of one death.
type evidence struct {
	Life      runner.Life
	Device    string
	Phase     string // what was going on: "handshake", "describe", ..., "running"
	StartErr  error  // it never started
	Status    exitStatus
	Verdict   *verdict
	Said      []string // the traceback that came with the verdict
	Asked     bool     // the end was asked for
	Forced    bool     // we sent SIGKILL while it lived
	LastOrder string
	LastSign  time.Duration // age of the last sign of life at death; negative: none
	Tail      []string
	Noise     []string
	Trace     tracebackFinder
}

// report judges the evidence: a pure function.
func report(e evidence) runner.Failure {
	f := runner.Failure{
		Worker: e.Life.Worker, Generation: e.Life.Generation, Role: e.Life.Worker.Role, Device: e.Device,
		At: e.Status.At, ExitCode: e.Status.Code, OOMKilled: e.Status.OOM, LastOrder: e.LastOrder,
		LastSignMS: -1, PeakBytes: e.Status.Peak, Stderr: e.Tail, Traceback: e.Trace.lines,
		StdoutNoise: e.Noise, Kernel: e.Status.Kernel.Lines, ForcedBySelf: e.Forced && e.Status.Signal == syscall.SIGKILL,
	}
	if e.LastSign >= 0 {
		f.LastSignMS = e.LastSign.Milliseconds()
	}
	if e.Status.Signal != 0 {
		f.Signal = signalName(e.Status.Signal)
	}
	if f.OOMKilled == "" {
		f.OOMKilled = "unknown"
	}
	v := judge(e)
	f.Cause, f.Message, f.Hint = v.Cause, v.Message, hintOr(v.Hint, lookHint)
	if e.Verdict != nil && v == *e.Verdict && len(e.Said) > 0 {
		f.Traceback = e.Said
	}
	return f
}

// judge picks the cause. What the process did by itself counts above what we
// were about to do to it: our verdict counts only where our signal ended it.
func judge(e evidence) verdict {
	ours := e.Status.Signal == syscall.SIGTERM && e.Asked || e.Status.Signal == syscall.SIGKILL && e.Forced
	switch {
	case e.StartErr != nil:
		return verdict{runner.CauseLaunch, "never started: " + e.StartErr.Error(), hintOr(runner.HintOf(e.StartErr), startHint(e.StartErr))}
	case !e.Status.Ended:
		return verdict{runner.CauseLaunch, "never started", ""}
	case ours && e.Verdict != nil:
		return *e.Verdict
	case ours:
		return verdict{runner.CauseKilled, "ended by the supervisor", ""}
	case e.Status.Signal != 0:
		return judgeSignal(e)
	case e.Status.Code < 0:
		return verdict{runner.CauseExit, "ended during " + e.Phase + ", its status was taken by somebody else", "this is a bug: keep the log"}
	case e.Status.Code != 0:
		return judgeCode(e)
	case e.Asked:
		return verdict{}
	}
	return verdict{runner.CauseExit, "ended by itself with code 0 without being asked, during " + e.Phase,
		"see the worker's log for what it did last"}
}

func judgeSignal(e evidence) verdict {
	name := signalName(e.Status.Signal)
	if e.Status.Signal == syscall.SIGKILL && e.Status.OOM == "yes" {
		return verdict{runner.CauseOOM, fmt.Sprintf("killed by the kernel for memory during %s, peak %d MiB", e.Phase, e.Status.Peak>>20),
			"give the job more memory, or lower buckets, anchors or the number of workers (dflash-runner plan shows the need)"}
	}
	if v, ok := judgeDevice(e); ok {
		return v
	}
	return verdict{runner.CauseSignal, fmt.Sprintf("killed by %s during %s", name, e.Phase), signalHint(e.Status.Signal)}
}

func judgeCode(e evidence) verdict {
	if v, ok := judgeDevice(e); ok {
		return v
	}
	if e.Status.Code == exitBrokenLane {
		return verdict{runner.CauseProtocol, "ended itself: a frame broke the lane's rules",
			"this binary and the Python package are of different versions, or this is a bug: keep the log"}
	}
	if e.Trace.kind == traceException && len(e.Trace.lines) > 0 {
		last := lastError(e.Trace.lines)
		return verdict{runner.CausePython, last, pythonHint(last)}
	}
	message := fmt.Sprintf("ended with code %d during %s", e.Status.Code, e.Phase)
	if len(e.Tail) > 0 {
		message += ": " + e.Tail[len(e.Tail)-1]
	}
	return verdict{runner.CauseExit, message, "see the worker's log for what it did last"}
}

// judgeDevice finds a fault of the device, in the worker's own words and in the
// kernel's.
func judgeDevice(e evidence) (verdict, bool) {
	line, xid := cudaLine(e), e.Status.Kernel.Xid
	switch {
	case line != "" && xid != 0:
		return verdict{runner.CauseCUDA, fmt.Sprintf("%s (the kernel's log has Xid %d)", line, xid), xidHint(xid)}, true
	case line != "":
		return verdict{runner.CauseCUDA, line, cudaHint(line)}, true
	case xid != 0 && e.Status.Kernel.Named && e.Status.Signal != syscall.SIGKILL && e.Status.Signal != syscall.SIGTERM:
		return verdict{runner.CauseCUDA, fmt.Sprintf("ended during %s after a fault of its GPU: %s", e.Phase, e.Status.Kernel.Lines[0]), xidHint(xid)}, true
	}
	return verdict{}, false
}

// startHint says what to do about a process that could not be started.
func startHint(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "this process may not open more files: raise the limit (ulimit -n; dflash-runner doctor says what is wanted)"
	case errors.Is(err, syscall.ENFILE):
		return "the machine has too many open files: end what holds them, or raise fs.file-max"
	case errors.Is(err, syscall.EAGAIN):
		return "no more processes are allowed: raise the limit (ulimit -u, or the container's limit of pids)"
	case errors.Is(err, syscall.ENOMEM):
		return "the machine's memory is full: end what holds it, or use fewer workers"
	}
	return "check that the interpreter in the worker's command exists and may be run (dflash-runner doctor)"
}

// cudaMarks are words of messages that only a fault of the device gives.
var cudaMarks = []string{"CUDA error", "CUDA out of memory", "torch.OutOfMemoryError", "torch.AcceleratorError",
	"CUBLAS_STATUS_", "CUDNN_STATUS_", "device-side assert", "NCCL error", "cudaError"}

// cudaLine finds the newest line that tells of a device fault.
func cudaLine(e evidence) string {
	for _, lines := range [][]string{e.Trace.lines, e.Tail} {
		for i := len(lines) - 1; i >= 0; i-- {
			for _, mark := range cudaMarks {
				if strings.Contains(lines[i], mark) {
					return strings.TrimSpace(lines[i])
				}
			}
		}
	}
	return ""
}

func cudaHint(line string) string {
	if strings.Contains(line, "emory") {
		return "the device's memory is full: lower buckets or anchors, or look for other processes on it (nvidia-smi)"
	}
	return "look for Xid lines in the kernel's log; a device that fails again needs a reset or a replacement"
}

// signalHint says what each signal usually means.
func signalHint(s syscall.Signal) string {
	switch s {
	case syscall.SIGKILL:
		return "something outside sent SIGKILL: a job scheduler's limit, another user, or a container's end"
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP:
		return "something outside asked the worker to end; signal the supervisor instead (dflash-runner down)"
	case syscall.SIGBUS:
		return "shared memory could not be backed: check the memory limit and the size of /dev/shm"
	case syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGFPE:
		return "native code crashed: the stacks are in the report; check the versions of torch and the driver (dflash-runner doctor)"
	case syscall.SIGILL:
		return "this processor lacks an instruction that a library uses: install a build for it"
	}
	return lookHint
}

// lookHint is for what nothing better is known of: no report is without a hint.
const lookHint = "see the worker's log for what it did last"

// pythonHint knows the errors that a user can mend.
func pythonHint(last string) string {
	switch {
	case strings.HasPrefix(last, "ModuleNotFoundError"), strings.HasPrefix(last, "ImportError"):
		return "the Python environment is incomplete or of another version: remake it, then run dflash-runner doctor"
	case strings.HasPrefix(last, "MemoryError"), strings.Contains(last, "Cannot allocate memory"):
		return "the machine's memory is full: lower buckets, anchors or the number of workers"
	case strings.HasPrefix(last, "FileNotFoundError"), strings.HasPrefix(last, "PermissionError"):
		return "a file that the configuration names is not there or may not be read"
	}
	return "the traceback is in the report and in the worker's log"
}

func hintOr(hint, otherwise string) string {
	if hint != "" {
		return hint
	}
	return otherwise
}

// signalName gives "SIGSEGV".
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}
