package image

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
)

// Image is an image in memory: fixed size, held by its descriptors. It is not
// for concurrent use, but its files may be read by anyone.
type Image struct {
	Step     runner.Step
	file     *os.File
	readOnly *os.File
	size     uint64
	ended    func() // told once it is closed; nil: nobody
}

// Make gives an empty image. Whoever is sent File writes it whole.
func Make(step runner.Step, size uint64) (*Image, error) {
	if size == 0 {
		return nil, runner.Errorf(runner.Invalid, "make image of step %d: want more than 0 bytes", step)
	}
	f, err := arena.Memfd("dflash image", size)
	if err != nil {
		return nil, fmt.Errorf("make image of step %d: %w", step, err)
	}
	readOnly, err := arena.ReadOnly(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("make image of step %d: %w", step, err)
	}
	return &Image{Step: step, file: f, readOnly: readOnly, size: size}, nil
}

// File is the writer's descriptor; it stays the image's.
func (i *Image) File() *os.File { return i.file }

// ReadOnlyFile is the readers' descriptor; it stays the image's.
func (i *Image) ReadOnlyFile() *os.File { return i.readOnly }

// Bytes is the size of the whole file.
func (i *Image) Bytes() uint64 { return i.size }

// Close lets the memory go once no worker maps it.
func (i *Image) Close() error {
	err := i.file.Close()
	if e := i.readOnly.Close(); err == nil {
		err = e
	}
	if ended := i.ended; ended != nil {
		i.ended = nil
		ended()
	}
	return err
}

// Digest gives the SHA-256 of size bytes of f from its start. It reads, and
// maps nothing; f's offset does not move.
func Digest(f *os.File, size uint64) (d runner.Digest, err error) {
	h := sha256.New()
	n, err := io.Copy(h, bufio.NewReaderSize(io.NewSectionReader(f, 0, int64(size)), copyChunk))
	if err != nil {
		return d, runner.Errorf(runner.Unavailable, "digest %s: %w", f.Name(), err)
	}
	if uint64(n) != size {
		return d, runner.Errorf(runner.Invalid, "digest %s: want %d bytes, got %d", f.Name(), size, n)
	}
	return runner.Digest(h.Sum(nil)), nil
}

// copyChunk is how much is read at a time, in bytes.
const copyChunk = 1 << 20

// sizeOf gives a file's size.
func sizeOf(f *os.File) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return 0, runner.Errorf(runner.Unavailable, "look at %s: %w", f.Name(), err)
	}
	return uint64(s.Size), nil
}
