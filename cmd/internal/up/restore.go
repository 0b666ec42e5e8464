package up

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// kept is what a run's files were before this supervisor began.
type kept struct {
	whole map[string][]byte // files that are written anew; nil: not there
	sizes map[string]int64  // of those that grow
}

// growing are the patterns of files that only grow.
var growing = []string{"events.jsonl", "logs/*"}

// keep remembers the record of a run that trained; nil where there is none.
func keep(d *rundir) (*kept, error) {
	if !hasJournal(d.path) {
		return nil, nil
	}
	k := &kept{map[string][]byte{}, map[string]int64{}}
	for _, name := range []string{admin.SummaryFile, admin.StatusFile} {
		b, err := os.ReadFile(d.join(name))
		if err != nil && !os.IsNotExist(err) {
			return nil, writable(d.path, err)
		}
		k.whole[d.join(name)] = b
	}
	for _, path := range d.glob(growing...) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, writable(d.path, err)
		}
		k.sizes[path] = info.Size()
	}
	return k, nil
}

// restore takes the record of a start that was refused out of the run's files:
// they tell of the lives that trained.
func (k *kept) restore(d *rundir) error {
	if k == nil {
		return nil
	}
	var all []error
	for path, b := range k.whole {
		if b == nil {
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				all = append(all, err)
			}
			continue
		}
		all = append(all, renameio.WriteFile(path, b, 0o600))
	}
	for _, path := range d.glob(growing...) {
		if size, ok := k.sizes[path]; ok {
			all = append(all, os.Truncate(path, size))
		} else {
			all = append(all, os.Remove(path))
		}
	}
	if err := errors.Join(all...); err != nil {
		return writable(d.path, err)
	}
	return nil
}

// glob lists the run's files that patterns name.
func (d *rundir) glob(patterns ...string) (paths []string) {
	for _, p := range patterns {
		found, err := filepath.Glob(d.join(p))
		if err == nil { // the patterns are well formed
			paths = append(paths, found...)
		}
	}
	return paths
}
