package drivetest

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// Memory makes real arenas and images, and counts those that are open.
type Memory struct {
	RefuseArena, RefuseImage func() error
	open, taken              atomic.Int64
}

// Open says how many regions are not closed.
func (m *Memory) Open() int64 { return m.open.Load() }

// MakeArena makes an arena.
func (m *Memory) MakeArena(id runner.Arena, _ runner.Worker, slots uint32, slotBytes uint64) (drive.Region, error) {
	if m.RefuseArena != nil {
		if err := m.RefuseArena(); err != nil {
			return nil, err
		}
	}
	a, err := arena.New(id, slots, slotBytes)
	if err != nil {
		return nil, err
	}
	return m.region(runner.ArenaMemfd, a.Bytes(), a.File(), a.ReadOnlyFile(), a.Close), nil
}

// TakeArena takes a model's arena.
func (m *Memory) TakeArena(o runner.CreateArena, f *os.File) (drive.Region, error) {
	if m.RefuseArena != nil {
		if err := m.RefuseArena(); err != nil {
			f.Close()
			return nil, err
		}
	}
	m.taken.Add(1)
	return m.region(o.Kind, uint64(o.Slots)*o.SlotBytes, f, f, f.Close), nil
}

// Taken says how many arenas came from targets.
func (m *Memory) Taken() int64 { return m.taken.Load() }

// MakeImage makes an empty image.
func (m *Memory) MakeImage(step runner.Step, nbytes uint64) (drive.Region, error) {
	if m.RefuseImage != nil {
		if err := m.RefuseImage(); err != nil {
			return nil, err
		}
	}
	i, err := image.Make(step, nbytes)
	if err != nil {
		return nil, err
	}
	return m.region(runner.ArenaMemfd, nbytes, i.File(), i.ReadOnlyFile(), i.Close), nil
}

func (m *Memory) region(kind string, bytes uint64, w, r *os.File, closeAll func() error) drive.Region {
	m.open.Add(1)
	return &region{kind, bytes, w, r, func() error {
		m.open.Add(-1)
		return closeAll()
	}}
}

type region struct {
	kind     string
	bytes    uint64
	w, r     *os.File
	closeAll func() error
}

func (r *region) Kind() string       { return r.kind }
func (r *region) Bytes() uint64      { return r.bytes }
func (r *region) Writable() *os.File { return r.w }
func (r *region) ReadOnly() *os.File { return r.r }
func (r *region) Close() error       { return r.closeAll() }

// Store keeps real checkpoints under Dir.
type Store struct {
	Dir     string
	Writer  image.Writer // nil: the disk
	Memory  *Memory      // counts what Open gives
	Removed func() error // before a removal
}

// Open proves a checkpoint and gives its image.
func (s *Store) Open(name string, want runner.Digest) (drive.Region, error) {
	f, facts, err := image.Open(filepath.Join(s.Dir, name))
	if err != nil {
		return nil, err
	}
	if facts.Image != hex.EncodeToString(want[:]) {
		f.Close()
		return nil, runner.Errorf(runner.Invalid, "open %s: want image %x, got %s", name, want, facts.Image)
	}
	return s.Memory.region(runner.ArenaMemfd, facts.Bytes, nil, f, f.Close), nil
}

// Publish makes a checkpoint.
func (s *Store) Publish(p drive.Publication) (string, error) {
	h, err := image.ReadHeader(p.Region.ReadOnly(), p.Region.Bytes())
	if err != nil {
		return "", err
	}
	w := s.Writer
	if w == nil {
		w = image.Disk{}
	}
	return image.Publish(s.Dir, p.Region.ReadOnly(), image.Facts{Step: p.Step, Lineage: p.Lineage, Chain: hex.EncodeToString(p.Chain[:]),
		Image: hex.EncodeToString(p.Digest[:]), Parameters: hex.EncodeToString(h.Parameters[:]), Bytes: p.Region.Bytes(), Written: "now"}, w)
}

// Remove deletes a checkpoint.
func (s *Store) Remove(name string) error {
	if s.Removed != nil {
		if err := s.Removed(); err != nil {
			return err
		}
	}
	return image.Remove(s.Dir, name)
}
