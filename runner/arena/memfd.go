package arena

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Memfd makes an anonymous file of size bytes whose pages are all there and
// which can neither shrink nor grow: no worker can make another's access fail.
// It is named only in /proc. The memory counts against the cgroup from here
// on, and goes with the last descriptor and mapping.
//
// Memory that is not there is refused before anything is allocated, with kind
// exhausted: the kernel would not refuse it, but kill processes until there is none left to kill.
func Memfd(name string, size uint64) (*os.File, error) {
	return makeMemfd(name, size, CheckMemory)
}

func makeMemfd(name string, size uint64, check func(need uint64) error) (*os.File, error) {
	if size == 0 || size > math.MaxInt64 {
		return nil, runner.Errorf(runner.Invalid, "make memfd %s: want 1 to 2^63-1 bytes, got %d", name, size)
	}
	if err := check(size); err != nil {
		return nil, fmt.Errorf("make memfd %s: %w", name, err)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, runner.Errorf(kindOf(err), "make memfd %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), "memfd:"+name)
	if err := fill(fd, int64(size)); err != nil {
		f.Close()
		return nil, runner.Errorf(kindOf(err), "make memfd %s of %d bytes: %w", name, size, err)
	}
	return f, nil
}

func fill(fd int, size int64) error {
	// fallocate and not ftruncate: the pages are to be there now, not at a worker's first touch.
	for {
		err := unix.Fallocate(fd, 0, 0, size)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("allocate: %w", err)
		}
		break
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// ReadOnly opens the memfd f a second time, for reading only: what a reader is
// given. A process of the same user could open it for writing again through
// /proc; this guards against mistakes, the slot's checksum against the rest.
func ReadOnly(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "open %s for reading: %w", f.Name(), err)
	}
	var twin int
	var opened error
	err = raw.Control(func(fd uintptr) {
		twin, opened = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err = errors.Join(err, opened); err != nil {
		return nil, runner.Errorf(runner.Internal, "open %s for reading: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(twin), f.Name()+" (read only)"), nil
}

// kindOf gives exhausted where memory or descriptors ran out.
func kindOf(err error) runner.Kind {
	for _, out := range []error{unix.ENOMEM, unix.ENOSPC, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, out) {
			return runner.Exhausted
		}
	}
	return runner.Internal
}
