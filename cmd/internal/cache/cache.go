// Package cache lists and removes what this program keeps outside of runs:
// targets, data, environments, compiled kernels, and sockets of dead runs.
// Everything there can be made again.
package cache

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/flock"
)

// Entry is one thing in the cache.
type Entry struct {
	Kind   string    `json:"kind"` // the folder below the cache: targets, data, python, ...
	Name   string    `json:"name"`
	Path   string    `json:"path"`
	Bytes  uint64    `json:"bytes"`        // on disk, in blocks; a file with several names counts once
	Shared uint64    `json:"shared_bytes"` // of them, of files with a name outside of the entry: removing it does not free these
	Used   time.Time `json:"used"`         // last change
	InUse  bool      `json:"in_use"`
}

// List gives the cache's entries, by kind and name. A cache that was never made
// is empty.
func List(root string) (entries []Entry, err error) {
	kinds, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "list cache: %w", err)
	}
	for _, kind := range kinds {
		if !kind.IsDir() {
			continue
		}
		names, err := os.ReadDir(filepath.Join(root, kind.Name()))
		if err != nil {
			return nil, runner.Errorf(runner.Unavailable, "list cache: %w", err)
		}
		for _, n := range names {
			if strings.HasSuffix(n.Name(), flock.Suffix) {
				continue
			}
			e := Entry{Kind: kind.Name(), Name: n.Name(), Path: filepath.Join(root, kind.Name(), n.Name())}
			e.measure()
			e.InUse = locked(lockOf(e.Path))
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// file is one file's blocks, and how many of its names an entry has.
type file struct {
	bytes        uint64
	names, found uint64
}

// measure adds up blocks; what vanishes meanwhile counts nothing. Installers
// link packages out of a cache of their own, so that many files have a second
// name there: they take their place on the disk all the same.
func (e *Entry) measure() {
	files := map[[2]uint64]file{}
	_ = filepath.WalkDir(e.Path, func(path string, d fs.DirEntry, err error) error {
		var s unix.Stat_t
		if err != nil || unix.Lstat(path, &s) != nil {
			return nil //nolint:nilerr // gone, or not ours to read: it counts nothing
		}
		if at := time.Unix(s.Mtim.Unix()); at.After(e.Used) {
			e.Used = at
		}
		f := file{bytes: uint64(s.Blocks) * 512, names: 1, found: 1}
		if !d.IsDir() { // a directory's links are its children
			id := [2]uint64{s.Dev, s.Ino}
			f.names, f.found = uint64(s.Nlink), files[id].found+1
			files[id] = f
		}
		if f.found == 1 {
			e.Bytes += f.bytes
		}
		return nil
	})
	for _, f := range files {
		if f.names > f.found {
			e.Shared += f.bytes
		}
	}
}

// lockOf names the lock file of an entry. What is not whole yet, or is being
// removed, goes by the lock of the entry that it is of.
func lockOf(path string) string {
	dir, name := filepath.Split(path)
	if entry, _, ok := strings.Cut(name, ".partial-"); ok {
		name = strings.TrimPrefix(entry, ".")
	}
	return filepath.Join(dir, strings.TrimPrefix(name, ".removed-")+flock.Suffix)
}

// locked reports whether some process holds the lock file.
func locked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// Remove takes an entry out of the cache, under its lock: it is renamed first,
// so that nobody finds half of it. The lock file stays, as somebody may wait at it.
func Remove(e Entry) error {
	lock, err := flock.Open(lockOf(e.Path))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if alone, err := lock.Try(true); err != nil {
		return err
	} else if !alone {
		return runner.Errorf(runner.Unavailable, "remove %s %s: a process uses it", e.Kind, e.Name)
	}
	gone := filepath.Join(filepath.Dir(e.Path), ".removed-"+e.Name)
	if err := os.RemoveAll(gone); err != nil {
		return runner.Errorf(runner.Unavailable, "remove %s %s: %w", e.Kind, e.Name, err)
	}
	if err := os.Rename(e.Path, gone); err != nil {
		return runner.Errorf(runner.Unavailable, "remove %s %s: %w", e.Kind, e.Name, err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return runner.Errorf(runner.Unavailable, "remove %s %s: %w", e.Kind, e.Name, err)
	}
	return nil
}

// Leftovers lists what crashes left: sockets in the runtime directory that
// nobody answers, and cache entries that were being made or removed an hour ago.
// Directories of sockets are not among them, as their owners are known to admin,
// but for those that earlier versions made without a record.
func Leftovers(root, runtime string, now time.Time) (paths []string) {
	for _, pattern := range []string{"*/.removed-*", "*/.tmp-*", "*/*.tmp", "*/*.partial", "*/.*.partial-*"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are well formed
		for _, path := range found {
			if s, err := os.Lstat(path); err == nil && now.Sub(s.ModTime()) > time.Hour && !locked(lockOf(path)) {
				paths = append(paths, path)
			}
		}
	}
	sockets, _ := filepath.Glob(filepath.Join(runtime, "*.sock"))
	for _, path := range sockets {
		if s, err := os.Lstat(path); err == nil && s.Mode().Type() == fs.ModeSocket && silent(path) {
			paths = append(paths, path)
		}
	}
	unsigned, _ := filepath.Glob(filepath.Join(runtime, "plugin-dir*")) // as go-plugin names them
	for _, path := range unsigned {
		if deserted(path, now, booted(now)) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// deserted reports whether a directory that has no record of its owner, and was
// not touched for an hour, is proved to be a dead one's: it holds nothing but
// sockets whose listeners are gone, and at least one, or is older than this boot. A
// start binds one socket in a directory of its own, which is never bound again; one
// that is empty since this boot may be of a start that takes long.
func deserted(dir string, now, boot time.Time) bool {
	s, err := os.Lstat(dir)
	if err != nil || !s.IsDir() || now.Sub(s.ModTime()) < time.Hour {
		return false
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 && !s.ModTime().Before(boot) {
		return false
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSocket || !silent(filepath.Join(dir, e.Name())) {
			return false
		}
	}
	return true
}

// booted is when this machine started; long ago where that cannot be read.
func booted(now time.Time) time.Time {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(s.Uptime) * time.Second)
}

// silent reports whether a socket has nobody behind it.
func silent(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, unix.ECONNREFUSED)
}
