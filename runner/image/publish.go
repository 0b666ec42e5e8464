package image

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// The files of a checkpoint.
const (
	ImageFile = "image.safetensors"
	FactsFile = "checkpoint.json"
)

// FactsFormat is the version of checkpoint.json.
const FactsFormat = "dflash-runner-checkpoint/1"

// Facts is checkpoint.json: what a checkpoint is, with the digest of its image.
type Facts struct {
	Format     string         `json:"format"`
	Step       runner.Step    `json:"step"`
	Lineage    runner.Lineage `json:"lineage"`
	Chain      string         `json:"chain"`      // hex
	Image      string         `json:"image"`      // SHA-256 of the image file, hex
	Parameters string         `json:"parameters"` // digest of the parameters, hex
	Bytes      uint64         `json:"bytes"`
	Written    string         `json:"written"` // RFC 3339
}

// Writer copies an image and the facts beside it; tests put one in its place
// that runs out of disk.
type Writer interface {
	Copy(to *os.File, from *os.File, size uint64) error
	Write(to *os.File, b []byte) error
}

// Disk is the Writer that writes.
type Disk struct{}

// Copy moves bytes inside the kernel; the supervisor's memory stays small.
func (Disk) Copy(to, from *os.File, size uint64) error {
	for at := int64(0); at < int64(size); {
		n, err := unix.Sendfile(int(to.Fd()), int(from.Fd()), &at, int(min(int64(size)-at, 64<<20)))
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

// Write writes b whole.
func (Disk) Write(to *os.File, b []byte) error {
	_, err := to.Write(b)
	return err
}

// Name gives the directory name of a step's checkpoint.
func Name(step runner.Step) string { return fmt.Sprintf("step-%d", step) }

// Publish makes a checkpoint of an image under dir: written beside, synced,
// checked against the digest, renamed, the directory synced. When it returns
// without an error the checkpoint is whole and durable; after an error nothing
// of it is visible, and what was there before is untouched. A checkpoint of the
// same name and digest that is there already and whole is kept.
func Publish(dir string, from *os.File, f Facts, w Writer) (name string, err error) {
	f.Format = FactsFormat
	name = Name(f.Step)
	final := filepath.Join(dir, name)
	if whole(final, f.Image) {
		return name, nil
	}
	partial, err := os.MkdirTemp(dir, ".partial-")
	if err != nil {
		return "", failed(f.Step, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(partial))
		}
	}()
	if err := fill(partial, from, f, w); err != nil {
		return "", failed(f.Step, err)
	}
	if err := os.RemoveAll(final); err != nil { // one with another digest: an older lineage's
		return "", failed(f.Step, err)
	}
	if err := os.Rename(partial, final); err != nil {
		return "", failed(f.Step, err)
	}
	if err := syncDir(dir); err != nil {
		return "", failed(f.Step, err)
	}
	return name, nil
}

// whole reports whether a checkpoint of just this image is there, undamaged: its
// facts alone do not say so.
func whole(path, image string) bool {
	if old, err := ReadFacts(path); err != nil || old.Image != image {
		return false
	}
	_, err := Verify(path)
	return err == nil
}

// fill writes and syncs the files of a checkpoint into partial.
func fill(partial string, from *os.File, f Facts, w Writer) error {
	facts, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	image := filepath.Join(partial, ImageFile)
	err = writeFile(image, func(to *os.File) error { return w.Copy(to, from, f.Bytes) })
	if err == nil {
		err = writeFile(filepath.Join(partial, FactsFile), func(to *os.File) error { return w.Write(to, append(facts, '\n')) })
	}
	if err == nil {
		err = checkDigest(image, f)
	}
	if err == nil {
		err = syncDir(partial)
	}
	return err
}

func writeFile(path string, write func(*os.File) error) error {
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	err = write(to)
	if err == nil {
		err = to.Sync()
	}
	return errors.Join(err, to.Close())
}

// checkDigest proves that what is on the disk is what the worker digested.
func checkDigest(image string, f Facts) error {
	file, err := os.Open(image)
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := sizeOf(file)
	if err != nil {
		return err
	}
	d, err := Digest(file, size)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(d[:]); got != f.Image || size != f.Bytes {
		return runner.Errorf(runner.Invalid, "check %s: want digest %s of %d bytes, got %s of %d", image, f.Image, f.Bytes, got, size)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// failed says which step's checkpoint was not made, and what to do where the
// disk is full.
func failed(step runner.Step, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return runner.Errorf(runner.Exhausted, "publish checkpoint of step %d: %w", step, err).
			WithHint("free space on the disk of the run's directory; the checkpoint before is whole, and the next one is tried")
	}
	return runner.Errorf(runner.Unavailable, "publish checkpoint of step %d: %w", step, err)
}
