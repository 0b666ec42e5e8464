package pyenv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner"
)

// Tree gives a directory that holds the embedded Python package: what a
// worker's PYTHONPATH must name. It is written to the cache once, named after
// its contents, and compared with the embedded files on every call; where it
// differs it is written anew beside and put in its place.
func Tree(cacheDir string) (string, error) {
	if cacheDir == "" {
		var err error
		if cacheDir, err = DefaultCacheDir(); err != nil {
			return "", err
		}
	}
	return extract(cacheDir, python.Package)
}

func extract(cacheDir string, tree fs.FS) (string, error) {
	cacheDir, err := filepath.Abs(cacheDir)
	if err != nil {
		return "", runner.Errorf(runner.Invalid, "lay out python package: %w", err)
	}
	files, digest, err := readTree(tree)
	if err != nil {
		return "", runner.Errorf(runner.Internal, "lay out python package: %w", err)
	}
	parent := filepath.Join(cacheDir, "python")
	dir := filepath.Join(parent, "tree-"+digest[:16])
	if sameTree(dir, files) {
		return dir, nil
	}
	if err := writeTree(parent, dir, files); err != nil {
		return "", runner.Errorf(runner.Unavailable, "lay out python package in %s: %w", dir, err)
	}
	return dir, nil
}

// readTree reads all files and names them by one digest.
func readTree(tree fs.FS) (map[string][]byte, string, error) {
	files, h := map[string][]byte{}, sha256.New()
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(tree, path)
		files[path] = b
		fmt.Fprintf(h, "%s %d\n", path, len(b))
		h.Write(b)
		return err
	})
	return files, hex.EncodeToString(h.Sum(nil)), err
}

// sameTree reports whether dir holds exactly the files, byte code aside.
func sameTree(dir string, files map[string][]byte) bool {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "__pycache__" {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := files[filepath.ToSlash(rel)]
		got, err := os.ReadFile(path)
		if !ok || err != nil || !bytes.Equal(got, want) {
			return errors.New("differs")
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}

// writeTree writes beside and renames. A tree that was there and differs is
// moved away first; one that another process put there in the meantime and
// that is right is kept.
func writeTree(parent, dir string, files map[string][]byte) (err error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, "tmp-tree-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	fresh := filepath.Join(tmp, "new")
	for name, b := range files {
		path := filepath.Join(fresh, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return err
		}
	}
	if err := os.Rename(dir, filepath.Join(tmp, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil && !sameTree(dir, files) {
		return err
	}
	return nil
}
