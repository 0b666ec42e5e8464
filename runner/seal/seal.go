// Package seal tells whether a directory that other programs fill is still what
// it was when it was last known to be good. It is for compile caches: compilers
// trust a file that they find under its name, so one that was cut short by a
// full disk would fail every worker that comes after.
package seal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
)

// File is the seal's name in its directory.
const File = "seal.json"

const format = "dflash-runner-seal/1"

// asideSuffix is where a broken directory goes, in place of an earlier one.
const asideSuffix = ".broken"

// sealed is the seal: every file of the directory.
type sealed struct {
	Format string          `json:"format"`
	Files  map[string]fact `json:"files"` // by path below the directory
}

type fact struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Write seals a directory as it stands. Whoever fills it must have come to a
// good end; a file that vanishes meanwhile, as temporary ones do, is left out.
func Write(dir string) error {
	s := sealed{Format: format, Files: map[string]fact{}}
	paths, err := list(dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		f, err := read(filepath.Join(dir, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return runner.Errorf(runner.Unavailable, "seal %s: %w", dir, err)
		}
		s.Files[path] = f
	}
	text, err := json.Marshal(s)
	if err != nil {
		return runner.Errorf(runner.Internal, "seal %s: %w", dir, err)
	}
	if err := renameio.WriteFile(filepath.Join(dir, File), text, 0o600); err != nil {
		return runner.Errorf(runner.Unavailable, "seal %s: %w", dir, err)
	}
	return nil
}

// Restore makes a directory good again and says what it did, or nothing where
// it was good or empty. Files that came after the seal are removed: whoever
// wrote them never came to a good end. A directory with a file that is missing
// or changed, or with files and no seal, is set aside whole, and an empty one
// takes its place. Nobody may fill the directory meanwhile.
func Restore(dir string) (did string, err error) {
	paths, err := list(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(paths) == 0 {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	known, broken := check(dir)
	if broken != "" {
		return setAside(dir, broken)
	}
	extra := slices.DeleteFunc(paths, func(path string) bool { _, there := known[path]; return there })
	for _, path := range extra {
		if err := os.Remove(filepath.Join(dir, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", runner.Errorf(runner.Unavailable, "restore %s: %w", dir, err)
		}
	}
	if len(extra) > 0 {
		did = fmt.Sprintf("removed %d files that came after its last certificate", len(extra))
	}
	return did, nil
}

// check reads the seal and compares every file that it names.
func check(dir string) (known map[string]fact, broken string) {
	text, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "it has files and no seal: no warm-up came to its certificate"
	}
	var s sealed
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || s.Format != format {
		return nil, "its seal cannot be read"
	}
	for _, path := range slices.Sorted(maps.Keys(s.Files)) {
		switch now, err := read(filepath.Join(dir, path)); {
		case errors.Is(err, fs.ErrNotExist):
			return nil, path + " is missing"
		case err != nil:
			return nil, fmt.Sprintf("%s cannot be read: %v", path, err)
		case now.Bytes != s.Files[path].Bytes:
			return nil, fmt.Sprintf("%s has %d bytes, had %d", path, now.Bytes, s.Files[path].Bytes)
		case now != s.Files[path]:
			return nil, path + " was changed"
		}
	}
	return s.Files, ""
}

func setAside(dir, broken string) (string, error) {
	aside := dir + asideSuffix
	if err := os.RemoveAll(aside); err != nil {
		return "", runner.Errorf(runner.Unavailable, "set %s aside: %w", dir, err)
	}
	if err := os.Rename(dir, aside); err != nil {
		return "", runner.Errorf(runner.Unavailable, "set %s aside: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", runner.Errorf(runner.Unavailable, "set %s aside: %w", dir, err)
	}
	return fmt.Sprintf("%s: set aside as %s", broken, aside), nil
}

// list gives the regular files below dir but the seal, by their paths from it.
func list(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != dir:
			return nil
		case err != nil:
			return err
		case !e.Type().IsRegular():
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err == nil && rel != File {
			paths = append(paths, rel)
		}
		return err
	})
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "list %s: %w", dir, err)
	}
	return paths, nil
}

func read(path string) (f fact, err error) {
	file, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer func() { _ = file.Close() }() // only read
	h := sha256.New()
	n, err := io.Copy(h, file)
	return fact{Bytes: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}
