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
)

// Entry is one thing in the cache.
type Entry struct {
	Kind  string    `json:"kind"` // the folder below the cache: targets, data, python, ...
	Name  string    `json:"name"`
	Path  string    `json:"path"`
	Bytes uint64    `json:"bytes"` // on disk
	Used  time.Time `json:"used"`  // last change
	InUse bool      `json:"in_use"`
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
			if strings.HasSuffix(n.Name(), ".lock") {
				continue
			}
			e := Entry{Kind: kind.Name(), Name: n.Name(), Path: filepath.Join(root, kind.Name(), n.Name())}
			e.measure()
			e.InUse = locked(e.Path + ".lock")
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// measure adds up blocks; what vanishes meanwhile counts nothing.
func (e *Entry) measure() {
	_ = filepath.WalkDir(e.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // gone, or not ours to read: it counts nothing
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // likewise
		}
		var s unix.Stat_t
		if unix.Lstat(path, &s) == nil && (s.Nlink == 1 || d.IsDir()) {
			e.Bytes += uint64(s.Blocks) * 512
		}
		if info.ModTime().After(e.Used) {
			e.Used = info.ModTime()
		}
		return nil
	})
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

// Remove takes an entry out of the cache, under its lock where it has one: it
// is renamed first, so that nobody finds half of it.
func Remove(e Entry) error {
	if f, err := os.OpenFile(e.Path+".lock", os.O_RDWR, 0); err == nil {
		defer func() { _ = f.Close() }()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return runner.Errorf(runner.Unavailable, "remove %s %s: a process uses it", e.Kind, e.Name)
		}
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
func Leftovers(root, runtime string, now time.Time) (paths []string) {
	for _, pattern := range []string{"*/.removed-*", "*/.tmp-*", "*/*.tmp", "*/*.partial"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are well formed
		for _, path := range found {
			if s, err := os.Lstat(path); err == nil && now.Sub(s.ModTime()) > time.Hour && !locked(path+".lock") {
				paths = append(paths, path)
			}
		}
	}
	found, _ := filepath.Glob(filepath.Join(runtime, "plugin-dir*")) // of a killed supervisor's workers
	for _, path := range found {
		if s, err := os.Lstat(path); err == nil && s.IsDir() && now.Sub(s.ModTime()) > time.Minute && abandoned(path) {
			paths = append(paths, path)
		}
	}
	sockets, _ := filepath.Glob(filepath.Join(runtime, "*.sock"))
	for _, path := range sockets {
		if s, err := os.Lstat(path); err == nil && s.Mode().Type() == fs.ModeSocket && silent(path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// abandoned reports whether nobody answers on any socket in a directory.
func abandoned(dir string) bool {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type() == fs.ModeSocket && !silent(filepath.Join(dir, e.Name())) {
			return false
		}
	}
	return err == nil
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
