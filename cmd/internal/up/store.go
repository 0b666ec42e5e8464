package up

import (
	"cmp"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// bestFile names the best checkpoint by held-out loss; it lies beside them.
const bestFile = "best"

// store keeps checkpoints in the run's directory.
type store struct {
	dir    string
	writer image.Writer
	// processors have room for the loop while a checkpoint is made or proved.
	processors processors

	mu  sync.Mutex  // guards below
	all []published // by lineage, then step
}

// published is a checkpoint that is there, as far as is known.
type published struct {
	name    string
	step    runner.Step
	lineage runner.Lineage
	at      time.Time
}

var _ drive.Store = (*store)(nil)

func (s *store) path(name string) string { return filepath.Join(s.dir, name) }

// imagePath gives the image file of a checkpoint.
func (s *store) imagePath(name string) string { return filepath.Join(s.dir, name, image.ImageFile) }

// Open proves a checkpoint and gives its image, for reading only.
func (s *store) Open(name string, want runner.Digest) (drive.Region, error) {
	var f *os.File
	var facts image.Facts
	var err error
	s.processors.beside(func() { f, facts, err = image.Open(s.path(name)) })
	if err != nil {
		s.forget(name)
		return nil, err
	}
	if facts.Image != hex.EncodeToString(want[:]) {
		_ = f.Close()
		return nil, runner.Errorf(runner.Invalid, "open checkpoint %s: the journal has image %x, its directory has %s", name, want, facts.Image)
	}
	return region{arena.KindMemfd, facts.Bytes, nil, f, f.Close}, nil
}

// Publish makes a checkpoint of an image.
func (s *store) Publish(p drive.Publication) (string, error) {
	h, err := image.ReadHeader(p.Region.ReadOnly(), p.Region.Bytes())
	if err != nil {
		return "", err
	}
	if h.Step != p.Step || h.Chain != p.Chain {
		return "", runner.Errorf(runner.Internal, "publish step %d: the image is of step %d, chain %x", p.Step, h.Step, h.Chain)
	}
	facts := image.Facts{Step: p.Step, Lineage: p.Lineage, Chain: hex.EncodeToString(p.Chain[:]), Image: hex.EncodeToString(p.Digest[:]),
		Parameters: hex.EncodeToString(h.Parameters[:]), Bytes: p.Region.Bytes(), Written: time.Now().UTC().Format(time.RFC3339)}
	name := ""
	s.processors.beside(func() { name, err = image.Publish(s.dir, p.Region.ReadOnly(), facts, s.writer) })
	if err != nil {
		return "", err
	}
	if p.Best {
		if err := renameio.WriteFile(s.path(bestFile), []byte(name+"\n"), 0o600); err != nil {
			return "", runner.Errorf(runner.Unavailable, "name the best checkpoint: %w", err)
		}
	}
	s.note(published{name, p.Step, p.Lineage, time.Now()})
	return name, nil
}

// Remove deletes a checkpoint.
func (s *store) Remove(name string) error {
	s.forget(name)
	return image.Remove(s.dir, name)
}

// note keeps what is there now. A step that was restored from may be published
// again, in a newer lineage: by that a checkpoint is newer than one of a later
// step that was undone.
func (s *store) note(p published) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(o published) bool { return o.name == p.name })
	at, _ := slices.BinarySearchFunc(s.all, p, func(a, b published) int {
		return cmp.Or(cmp.Compare(a.lineage, b.lineage), cmp.Compare(a.step, b.step))
	})
	s.all = slices.Insert(s.all, at, p)
}

// forget drops what is gone or damaged.
func (s *store) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(o published) bool { return o.name == name })
}

// last gives the newest checkpoint made or found, nil without one.
func (s *store) last() *published {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil
	}
	p := s.all[len(s.all)-1]
	return &p
}

// openStore sweeps what a crash left and finds the newest checkpoint.
func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, writable(dir, err)
	}
	if err := image.Sweep(dir); err != nil {
		return nil, err
	}
	all, err := image.List(dir)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, writer: image.Disk{}}
	for _, c := range all {
		if c.Err == nil {
			at, _ := time.Parse(time.RFC3339, c.Facts.Written) // zero where an older version wrote no time
			s.note(published{c.Name, c.Facts.Step, c.Facts.Lineage, at})
		}
	}
	return s, nil
}
