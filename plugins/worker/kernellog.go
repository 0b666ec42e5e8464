package worker

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what is read of the kernel's log for one life, and of what is kept.
const (
	kernelBytes = 4 << 20
	kernelLines = 10
	kernelWidth = 300
)

// kernelNear is how long before a death a fault of a GPU that names no process
// may be logged to be told of beside it.
const kernelNear = time.Minute

// kernelRecord is one message, by the kernel's clock since the boot.
type kernelRecord struct {
	at   time.Duration
	text string
}

// kernelLog is the kernel's log from the start of one life on: a descriptor
// below Go's poller, which would wait for more. Where the log may not be read it
// is -1, and holds nothing.
type kernelLog int

// openKernelLog opens the log below root ("/" but in tests) at its end.
func openKernelLog(root string) kernelLog {
	fd, err := unix.Open(filepath.Join(root, "dev/kmsg"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil {
		unix.Close(fd)
		return -1
	}
	return kernelLog(fd)
}

// since gives what was logged since the opening, and closes the log. A device
// gives one record a read; records that were overwritten meanwhile are passed over.
func (k kernelLog) since() (records []kernelRecord) {
	if k < 0 {
		return nil
	}
	defer unix.Close(int(k))
	b := make([]byte, 16<<10)
	var all bytes.Buffer
	for all.Len() < kernelBytes {
		n, err := unix.Read(int(k), b)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		all.Write(b[:n])
	}
	for line := range strings.Lines(all.String()) {
		// "priority,number,microseconds,flags;message", then lines of keys, indented
		head, message, ok := strings.Cut(line, ";")
		if fields := strings.Split(head, ","); ok && !strings.HasPrefix(line, " ") && len(fields) > 2 {
			if at, err := strconv.ParseInt(fields[2], 10, 64); err == nil {
				records = append(records, kernelRecord{time.Duration(at) * time.Microsecond, strings.TrimRight(message, "\n")})
			}
		}
	}
	return records
}

var (
	oomKill = regexp.MustCompile(`(?:Out of memory|Memory cgroup out of memory): Killed process (\d+) |oom-kill:.*\bpid=(\d+)`)
	xidLine = regexp.MustCompile(`NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): (\d+), (?:pid='?(\d+))?`)
)

// kernelSaid are the lines that tell of one process's death, and what they say.
type kernelSaid struct {
	Lines []string
	OOM   bool // it was killed for memory
	Xid   int  // first fault of a GPU; 0: none
	Named bool // that fault names the process
}

// judgeKernel picks what is about process pid, which died at the time died of
// the kernel's clock: its kill for memory, and faults of GPUs that name it, or
// nobody and came shortly before. Numbers of a container's processes differ from
// the kernel's: a fault that names another is left out, as it may be a stranger's.
func judgeKernel(records []kernelRecord, pid int, died time.Duration) (s kernelSaid) {
	for _, r := range records {
		line, about := r.text, false
		if m := oomKill.FindStringSubmatch(line); m != nil && (m[1] == strconv.Itoa(pid) || m[2] == strconv.Itoa(pid)) {
			s.OOM, about = true, true
		}
		if m := xidLine.FindStringSubmatch(line); m != nil && (m[2] == "" && died-r.at <= kernelNear || m[2] == strconv.Itoa(pid)) {
			about = true
			if n, err := strconv.Atoi(m[1]); err == nil && (s.Xid == 0 || !s.Named && m[2] != "") {
				s.Xid, s.Named = n, m[2] != ""
			}
		}
		if about && len(s.Lines) < kernelLines {
			s.Lines = append(s.Lines, clean(line, kernelWidth))
		}
	}
	return s
}

// xids say what the driver's numbers mean for whoever reads a report.
// Source: NVIDIA, "XID Errors".
var xids = map[int]string{
	13:  "the program did something illegal on the GPU: a fault of a kernel, seldom of the hardware",
	31:  "the program touched memory of the GPU that it has not: a fault of a kernel, seldom of the hardware",
	43:  "the GPU ended the program's work after a fault in it",
	45:  "the driver ended the program's work, mostly after another fault: look for the first",
	48:  "an uncorrectable error of the GPU's memory: reset the GPU; where it comes again, replace it",
	62:  "the GPU's own controller halted: reset the GPU",
	63:  "the GPU remaps a row of its memory: reset it at the next chance",
	64:  "the GPU could not remap a row of its memory: replace it",
	74:  "an error of NVLink: look at the links (nvidia-smi nvlink)",
	79:  "the GPU has fallen off the bus: reboot the machine; look at power and cooling",
	94:  "an uncorrectable error of the GPU's memory, contained to this program: start it again",
	95:  "an uncorrectable error of the GPU's memory, not contained: reset the GPU",
	119: "the GPU's own firmware does not answer: reset the GPU",
	120: "the GPU's own firmware does not answer: reset the GPU",
}

// xidHint says what to do about a fault.
func xidHint(n int) string {
	if s, ok := xids[n]; ok {
		return "Xid " + strconv.Itoa(n) + ": " + s
	}
	return "Xid " + strconv.Itoa(n) + ": look it up in NVIDIA's list of Xid errors"
}
