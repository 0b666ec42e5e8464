package arena

import (
	"math/bits"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// KindCUDA is memory of a target's GPU, allocated and exported by the target.
const KindCUDA = runner.ArenaCUDA

// CUDA is an arena in a GPU, held by the descriptor that its producer exported:
// while that is open here, the driver keeps the memory, whoever dies. It is
// never mapped here, and whether it is as large as its order said is seen by
// whoever maps it.
type CUDA struct {
	order runner.CreateArena
	file  *os.File
}

var _ Memory = (*CUDA)(nil)

// TakeCUDA takes f over, the descriptor that a worker sent for its arena; it is
// closed where it is refused. What is plainly none of a driver's (a file, a
// directory, a pipe, a socket) is of kind invalid.
func TakeCUDA(o runner.CreateArena, f *os.File) (*CUDA, error) {
	if err := checkExported(o, f); err != nil {
		_ = f.Close() // nothing of it was used
		return nil, err
	}
	return &CUDA{o, f}, nil
}

func checkExported(o runner.CreateArena, f *os.File) error {
	over, _ := bits.Mul64(uint64(o.Slots), o.SlotBytes)
	if o.Arena == 0 || o.Kind != KindCUDA || o.Slots == 0 || o.SlotBytes < HeaderBytes || o.SlotBytes%HeaderBytes != 0 || over != 0 {
		return runner.Errorf(runner.Invalid, "take arena %d: want slots of a multiple of %d bytes of kind %s, got %d of %d of kind %q",
			o.Arena, HeaderBytes, KindCUDA, o.Slots, o.SlotBytes, o.Kind)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return runner.Errorf(runner.Invalid, "take arena %d: %w", o.Arena, err)
	}
	var st unix.Stat_t
	var looked error
	if err := raw.Control(func(fd uintptr) { looked = unix.Fstat(int(fd), &st) }); err != nil || looked != nil {
		return runner.Errorf(runner.Invalid, "take arena %d: look at its descriptor: %v, %v", o.Arena, err, looked)
	}
	switch mode := st.Mode & unix.S_IFMT; mode {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFLNK, unix.S_IFBLK:
		return runner.Errorf(runner.Invalid, "take arena %d: want a descriptor of the GPU's driver, got one of file type %#o", o.Arena, mode)
	}
	return nil
}

// Kind gives KindCUDA.
func (c *CUDA) Kind() string { return KindCUDA }

// File gives the descriptor, for a later life of the producer.
func (c *CUDA) File() *os.File { return c.file }

// ReadOnlyFile gives the same one: an exported allocation has no twin for
// reading alone, and a consumer maps it so by the driver.
func (c *CUDA) ReadOnlyFile() *os.File { return c.file }

// Bytes gives what its slots take; the driver rounds up to its granularity.
func (c *CUDA) Bytes() uint64 { return uint64(c.order.Slots) * c.order.SlotBytes }

// Close lets the memory go once no worker maps it.
func (c *CUDA) Close() error {
	if err := c.file.Close(); err != nil {
		return runner.Errorf(runner.Internal, "close arena %d: %w", c.order.Arena, err)
	}
	return nil
}
