package admin

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
)

// The runtime directory is shared by all runs of a user. What a run puts there
// lies in a directory of its own, with a record of the process that it belongs
// to, so that it can be told from what the dead left.
const (
	ownedPrefix = "s-" // short: sockets' paths below it are bounded
	ownerFile   = "owner.json"
)

// owner is the record: the process, and the directory of the run that it works on.
type owner struct {
	Process
	Run string `json:"run,omitempty"` // absolute; records of older versions have none
}

// OwnedDirectory makes a directory of this process in the runtime directory,
// 0700. run is the directory of the run that it works on, absolute, or "".
// release removes it with what is in it, once nothing there is used.
func OwnedDirectory(run string) (path string, release func() error, err error) {
	runtime, err := RuntimeDirectory()
	if err != nil {
		return "", nil, err
	}
	self, err := Self()
	if err != nil {
		return "", nil, err
	}
	text, err := json.Marshal(owner{self, run})
	if err != nil {
		return "", nil, runner.Errorf(runner.Internal, "make socket directory: %w", err)
	}
	for errors.Is(err, fs.ErrExist) || path == "" {
		path = filepath.Join(runtime, ownedPrefix+strings.ToLower(rand.Text()[:5]))
		err = os.Mkdir(path, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err == nil {
		err = renameio.WriteFile(filepath.Join(path, ownerFile), text, 0o600)
	}
	if err != nil {
		return "", nil, runner.Errorf(runner.Unavailable, "make socket directory: %w", err)
	}
	return path, func() error {
		if err := os.RemoveAll(path); err != nil {
			return runner.Errorf(runner.Unavailable, "remove socket directory: %w", err)
		}
		return nil
	}, nil
}

// Owned is a directory in the runtime directory, and what is known of its owner.
type Owned struct {
	Path string
	Run  string // that its owner worked on, where that is recorded
	Dead bool   // its owner is proved to be gone
	Why  string // it is left alone, where it is not; empty where its owner is alive
}

// OwnedDirectories looks at every directory in the runtime directory. One whose
// owner is not recorded, or cannot be looked at from here, is nobody's to remove.
func OwnedDirectories(runtime string) ([]Owned, error) {
	entries, err := os.ReadDir(runtime)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "look at runtime directory: %w", err)
	}
	var out []Owned
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		o := Owned{Path: filepath.Join(runtime, e.Name())}
		o.Run, o.Dead, o.Why = judge(o.Path)
		if o.Dead || o.Why != "" {
			out = append(out, o)
		}
	}
	return out, nil
}

// RemoveLeft removes what dead processes that worked on a run left in the
// runtime directory, and names it. The caller holds the run's lock.
func RemoveLeft(run string) (gone []string, err error) {
	runtime, err := RuntimeDirectory()
	if err != nil {
		return nil, err
	}
	all, err := OwnedDirectories(runtime)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if !o.Dead || o.Run == "" || o.Run != run {
			continue
		}
		if err := os.RemoveAll(o.Path); err != nil {
			return gone, runner.Errorf(runner.Unavailable, "remove socket directory: %w", err)
		}
		gone = append(gone, o.Path)
	}
	return gone, nil
}

// judge reads a directory's record.
func judge(dir string) (run string, dead bool, why string) {
	text, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, "it does not say whose it is"
	}
	var o owner
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return "", false, fmt.Sprintf("whose it is cannot be read: %v", err)
	}
	dead, why = o.gone()
	return o.Run, dead, why
}

// gone reports whether the process is proved to be dead; why says what stands
// against a proof, and is empty where the process is alive.
func (p Process) gone() (dead bool, why string) {
	at, err := here()
	switch {
	case p.Pid <= 0 || p.StartTicks == 0 || p.BootID == "" || p.Namespace == "":
		return false, "its record of whose it is has gaps"
	case err != nil:
		return false, err.Error()
	case at.BootID != p.BootID:
		return true, ""
	case at.Namespace != p.Namespace:
		return false, fmt.Sprintf("its process %d is in another pid namespace", p.Pid)
	}
	now, err := startTicks(p.Pid)
	switch {
	case err == nil:
		return now != p.StartTicks, ""
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH), errors.Is(err, errZombie):
		return true, ""
	}
	return false, err.Error()
}
