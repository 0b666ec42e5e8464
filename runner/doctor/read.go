package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/kernels"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// Options say where to look.
type Options struct {
	Python     pyenv.Spec
	RunDir     string // where runs are kept; need not be there yet
	CacheDir   string
	RuntimeDir string // for sockets; must be there
}

// Read looks at this machine. It makes no environment, and leaves nothing
// behind. Children that may hang have deadlines.
func Read(ctx context.Context, o Options) Readings {
	r := Readings{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernel(), MemfdErr: tryMemfd(), Python: readPython(ctx, o.Python),
		Memory: readMemory("/proc/meminfo", "/sys/fs/cgroup", "/proc/self/cgroup"), Shm: readDisk("/dev/shm"),
		Memlock: readLimit(unix.RLIMIT_MEMLOCK), Files: readLimit(unix.RLIMIT_NOFILE),
		RunDir: readDisk(o.RunDir), CacheDir: readDisk(o.CacheDir), Runtime: readRuntime(o.RuntimeDir), Clock: readClock(),
	}
	r.GPUs, r.NoPeer, r.GPUErr = readGPUs(ctx, "nvidia-smi")
	return r
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// tryMemfd makes a sealed memory file, as every arena is.
func tryMemfd() error {
	fd, err := unix.MemfdCreate("dflash-runner-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return err
}

func readPython(ctx context.Context, s pyenv.Spec) PythonReading {
	in, err := pyenv.Inspect(ctx, s)
	if err == nil {
		err = in.Err
	}
	return PythonReading{
		Dir: in.Dir, Problem: in.Problem, Python: in.Python, Path: in.Path, Err: err, Hint: runner.HintOf(err), Packages: in.Packages, Wanted: in.Wanted,
	}
}

// readMemory reads what the kernel has and what the cgroup allows. Both
// versions of cgroups are looked for; the narrowest limit on the way up counts.
func readMemory(meminfo, cgroups, self string) MemoryReading {
	var m MemoryReading
	f, err := os.Open(meminfo)
	if err != nil {
		return MemoryReading{Err: err}
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseUint(fields[1], 10, 54)
		switch {
		case err != nil:
		case fields[0] == "MemTotal:":
			m.Total = n << 10
		case fields[0] == "MemAvailable:":
			m.Available = n << 10
		}
	}
	if m.Total == 0 || m.Available == 0 {
		return MemoryReading{Err: fmt.Errorf("%s says no MemTotal or MemAvailable", meminfo)}
	}
	m.CgroupLimit, m.CgroupInUse = cgroupMemory(cgroups, self)
	return m
}

func cgroupMemory(root, self string) (limit, used uint64) {
	b, err := os.ReadFile(self)
	if err != nil {
		return 0, 0
	}
	narrow := func(dir, max, current string) {
		n, ok := readNumber(filepath.Join(dir, max))
		in, _ := readNumber(filepath.Join(dir, current))
		if ok && n < 1<<60 && (limit == 0 || n-min(n, in) < limit-min(limit, used)) {
			limit, used = n, in
		}
	}
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, max, current := root, "memory.max", "memory.current"
		if parts[0] != "0" {
			if parts[1] != "memory" {
				continue
			}
			base, max, current = filepath.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
		}
		for p := filepath.Clean("/" + parts[2]); ; p = filepath.Dir(p) {
			narrow(filepath.Join(base, p), max, current)
			if p == "/" {
				break
			}
		}
	}
	return limit, used
}

// readNumber reads a file that holds one number; "max" is none.
func readNumber(path string) (uint64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

func readLimit(which int) Limit {
	var l unix.Rlimit
	err := unix.Getrlimit(which, &l)
	return Limit{Soft: l.Cur, Hard: l.Max, Err: err} // RLIM_INFINITY is the largest u64
}

// readDisk looks at a directory, or at the nearest one above it that is there.
func readDisk(path string) Disk {
	d := Disk{Path: path}
	there, err := filepath.Abs(path)
	if err != nil {
		return Disk{Path: path, Err: err}
	}
	var info os.FileInfo
	for info, err = os.Stat(there); errors.Is(err, fs.ErrNotExist) && there != "/"; info, err = os.Stat(there) {
		there = filepath.Dir(there)
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", there)
	}
	var s unix.Statfs_t
	if err == nil {
		err = unix.Statfs(there, &s)
	}
	if err != nil {
		return Disk{Path: path, Err: err}
	}
	d.FreeBytes, d.TotalBytes, d.FileSystem = s.Bavail*uint64(s.Bsize), s.Blocks*uint64(s.Bsize), kernels.Networked(int64(s.Type))
	d.WriteErr = tryWrite(there)
	return d
}

// tryWrite makes a file without a name where the file system can, so that
// nothing stays behind.
func tryWrite(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return unix.Close(fd)
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return err
	}
	f, err := os.CreateTemp(dir, ".dflash-runner-doctor-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func readRuntime(path string) RuntimeReading {
	r := RuntimeReading{Path: path}
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		r.Err = fmt.Errorf("%s: %w", path, err)
		return r
	}
	r.Mode, r.Own = s.Mode&0o777, s.Uid == uint32(os.Getuid())
	r.WriteErr = tryWrite(path)
	return r
}

func readClock() ClockReading {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return ClockReading{Now: time.Now(), Known: err == nil, Synchronised: state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0}
}
