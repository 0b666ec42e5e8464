package up

import (
	"encoding/hex"
	"os"
	"path/filepath"
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

	mu     sync.Mutex // guards below
	newest *published
}

// published is the newest checkpoint of this supervisor's life.
type published struct {
	name string
	step runner.Step
	at   time.Time
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || p.Step >= s.newest.step {
		s.newest = &published{name, p.Step, time.Now()}
	}
	return name, nil
}

// Remove deletes a checkpoint.
func (s *store) Remove(name string) error { return image.Remove(s.dir, name) }

// last gives the newest checkpoint made or found.
func (s *store) last() *published {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
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
			s.newest = &published{name: c.Name, step: c.Facts.Step}
			if t, err := time.Parse(time.RFC3339, c.Facts.Written); err == nil {
				s.newest.at = t
			}
		}
	}
	return s, nil
}
