package image

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// maxFacts bounds checkpoint.json, in bytes.
const maxFacts = 64 << 10

// Checkpoint is a published image.
type Checkpoint struct {
	Name  string
	Path  string // of its directory
	Facts Facts
	Err   error // why it cannot be used, or nil; the image's digest is not looked at
}

// List gives every checkpoint under dir, oldest step first, broken ones
// included. What a crash left half-written is not listed.
func List(dir string) ([]Checkpoint, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "list checkpoints: %w", err)
	}
	var out []Checkpoint
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), "step-") {
			continue
		}
		c := Checkpoint{Name: e.Name(), Path: filepath.Join(dir, e.Name())}
		c.Facts, c.Err = ReadFacts(c.Path)
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Checkpoint) int {
		if a.Facts.Step != b.Facts.Step {
			return int(int64(a.Facts.Step) - int64(b.Facts.Step))
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

// ReadFacts reads and checks a checkpoint's facts.
func ReadFacts(path string) (f Facts, err error) {
	name := filepath.Join(path, FactsFile)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return f, runner.Errorf(runner.NotFound, "read checkpoint: %w", err)
	}
	if err != nil {
		return f, runner.Errorf(runner.Unavailable, "read checkpoint: %w", err)
	}
	if err := parseFacts(b, &f); err != nil {
		return f, runner.Errorf(runner.Invalid, "read %s: %w", name, err)
	}
	return f, nil
}

func parseFacts(b []byte, f *Facts) error {
	if len(b) > maxFacts {
		return runner.Errorf(runner.Invalid, "want at most %d bytes, got %d", maxFacts, len(b))
	}
	var first struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(b, &first); err == nil && first.Format != FactsFormat {
		return runner.WrongFormat(FactsFormat, first.Format) // before a later version's fields are
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(f); err != nil {
		return err
	}
	if d.More() {
		return runner.Errorf(runner.Invalid, "want one object, got more")
	}
	if f.Format != FactsFormat {
		return runner.WrongFormat(FactsFormat, f.Format)
	}
	for field, text := range map[string]string{"chain": f.Chain, "image": f.Image, "parameters": f.Parameters} {
		if raw, err := hex.DecodeString(text); err != nil || len(raw) != 32 {
			return runner.Errorf(runner.Invalid, "%s: want 32 bytes in hex, got %q", field, text)
		}
	}
	return nil
}

// Open opens a checkpoint's image after proving every file of it: a flipped bit
// is found here and the file named. The caller closes it.
func Open(path string) (*os.File, Facts, error) {
	f, err := ReadFacts(path)
	if err != nil {
		return nil, f, err
	}
	if err := checkDigest(filepath.Join(path, ImageFile), f); err != nil {
		return nil, f, wrap(path, err)
	}
	file, err := os.Open(filepath.Join(path, ImageFile))
	if err != nil {
		return nil, f, wrap(path, err)
	}
	h, err := ReadHeader(file, f.Bytes)
	if err == nil {
		err = agree(h, f)
	}
	if err != nil {
		_ = file.Close()
		return nil, f, wrap(path, err)
	}
	return file, f, nil
}

// agree compares what the image says of itself with the facts beside it.
func agree(h Header, f Facts) error {
	switch {
	case h.Step != f.Step:
		return runner.Errorf(runner.Invalid, "step: the image says %d, %s says %d", h.Step, FactsFile, f.Step)
	case hex.EncodeToString(h.Chain[:]) != f.Chain:
		return runner.Errorf(runner.Invalid, "chain: the image and %s differ", FactsFile)
	case hex.EncodeToString(h.Parameters[:]) != f.Parameters:
		return runner.Errorf(runner.Invalid, "parameters: the image and %s differ", FactsFile)
	}
	return nil
}

// Verify proves a checkpoint whole.
func Verify(path string) (Facts, error) {
	file, f, err := Open(path)
	if err != nil {
		return f, err
	}
	return f, file.Close()
}

// Remove deletes a checkpoint so that a crash never leaves half of one under
// its name.
func Remove(dir, name string) error {
	if name != filepath.Base(name) || !strings.HasPrefix(name, "step-") {
		return runner.Errorf(runner.Invalid, "remove checkpoint %q: want a name like step-100", name)
	}
	gone, err := os.MkdirTemp(dir, ".partial-")
	if err != nil {
		return runner.Errorf(runner.Unavailable, "remove checkpoint %s: %w", name, err)
	}
	if err := os.Rename(filepath.Join(dir, name), filepath.Join(gone, name)); err != nil {
		return runner.Errorf(runner.KindOf(notFound(err)), "remove checkpoint %s: %w", name, errors.Join(err, os.Remove(gone)))
	}
	if err := os.RemoveAll(gone); err != nil {
		return runner.Errorf(runner.Unavailable, "remove checkpoint %s: %w", name, err)
	}
	return nil
}

// Sweep removes what a crash left half-written. Only the run's own supervisor
// calls it, at start.
func Sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, ".partial-*"))
	if err != nil {
		return runner.Errorf(runner.Internal, "sweep checkpoints: %w", err)
	}
	for _, p := range left {
		if err := os.RemoveAll(p); err != nil {
			return runner.Errorf(runner.Unavailable, "sweep checkpoints: %w", err)
		}
	}
	return nil
}

// Keep says which checkpoints may go: all but the newest n, and none whose name
// is in but. Pure.
func Keep(all []Checkpoint, n int, but ...string) (remove []string) {
	for i, c := range all {
		if i < len(all)-n && !slices.Contains(but, c.Name) {
			remove = append(remove, c.Name)
		}
	}
	return remove
}

func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return runner.Errorf(runner.NotFound, "%w", err)
	}
	return runner.Errorf(runner.Unavailable, "%w", err)
}

func wrap(path string, err error) error {
	return runner.Errorf(runner.KindOf(err), "open checkpoint %s: %w", path, err)
}
