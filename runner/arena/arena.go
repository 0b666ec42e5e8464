package arena

import (
	"fmt"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// KindMemfd is host memory, made here.
const KindMemfd = runner.ArenaMemfd

// Memory is what an arena of any kind is to the supervisor: a descriptor for
// its producer and one for its consumers. The supervisor holds both, so the
// bytes outlive every worker, and maps neither. Safe for use by one goroutine.
type Memory interface {
	// Kind is the name that the arena order carries.
	Kind() string
	// File is the producer's descriptor; it stays the arena's.
	File() *os.File
	// ReadOnlyFile is the consumers' descriptor; it stays the arena's.
	ReadOnlyFile() *os.File
	// Bytes is what it takes.
	Bytes() uint64
	// Close lets the memory go once no worker maps it.
	Close() error
}

// Arena is a memfd cut into slots.
type Arena struct {
	id        runner.Arena
	slots     uint32
	slotBytes uint64
	file      *os.File
	readOnly  *os.File
}

var _ Memory = (*Arena)(nil)

// New makes an arena of kind memfd. Memory that is not there is kind exhausted;
// CheckMemory with the sum says so before the first of several is made.
func New(id runner.Arena, slots uint32, slotBytes uint64) (*Arena, error) {
	over, size := bits.Mul64(uint64(slots), slotBytes)
	if id == 0 || slots == 0 || slotBytes < HeaderBytes || slotBytes%HeaderBytes != 0 || over != 0 {
		return nil, runner.Errorf(runner.Invalid,
			"make arena %d: want slots of a multiple of %d bytes, got %d of %d", id, HeaderBytes, slots, slotBytes)
	}
	f, err := Memfd(fmt.Sprintf("dflash arena %d", id), size)
	if err != nil {
		return nil, fmt.Errorf("make arena %d: %w", id, err)
	}
	readOnly, err := ReadOnly(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make arena %d: %w", id, err)
	}
	a := &Arena{id: id, slots: slots, slotBytes: slotBytes, file: f, readOnly: readOnly}
	if err := populate(f, size); err != nil {
		a.Close()
		return nil, runner.Errorf(kindOf(err), "fault in arena %d of %d bytes: %w", id, size, err)
	}
	return a, nil
}

// Kind gives KindMemfd.
func (a *Arena) Kind() string { return KindMemfd }

// Order gives the order that maps the arena at a worker; with it goes File
// where write, else ReadOnlyFile.
func (a *Arena) Order(write bool) runner.MapArena {
	return runner.MapArena{Arena: a.id, Kind: KindMemfd, Write: write, Slots: a.slots, SlotBytes: a.slotBytes}
}

// File gives the producer's descriptor.
func (a *Arena) File() *os.File { return a.file }

// ReadOnlyFile gives the consumers' descriptor.
func (a *Arena) ReadOnlyFile() *os.File { return a.readOnly }

// Bytes gives the arena's size.
func (a *Arena) Bytes() uint64 { return uint64(a.slots) * a.slotBytes }

// Close closes both descriptors.
func (a *Arena) Close() error {
	err := a.file.Close()
	if e := a.readOnly.Close(); err == nil {
		err = e
	}
	if err != nil {
		return runner.Errorf(runner.Internal, "close arena %d: %w", a.id, err)
	}
	return nil
}

// chunk bounds how much of an arena is mapped here at a time, so that the
// supervisor's peak memory stays small however large the arena is.
const chunk = 4 << 20

// populate makes the pages' first use happen here, once, and leaves nothing
// mapped. fallocate has given the file its pages; this clears and dirties
// them, so that no worker pays for it in a row's copy
// (measured). A kernel before 5.14 does not know the advice:
// workers then pay at their first copy, and nothing else changes.
func populate(f *os.File, size uint64) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var populated error
	err = raw.Control(func(fd uintptr) {
		for at := uint64(0); at < size && populated == nil; at += chunk {
			populated = populateChunk(int(fd), int64(at), int(min(chunk, size-at)))
		}
	})
	if err != nil {
		return err
	}
	return populated
}

func populateChunk(fd int, at int64, n int) error {
	b, err := unix.Mmap(fd, at, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	err = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	if err == unix.EINVAL {
		err = nil
	}
	if e := unix.Munmap(b); err == nil {
		err = e
	}
	return err
}
