package host

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/dflash-runner/dflash-runner/runner"
)

// trusted refuses a file that somebody else could change: one that everybody
// may write, that is another user's, or that lies below a directory where
// everybody may rename it. It gives the file's path without links.
func trusted(path string) (string, error) {
	full, err := filepath.Abs(path)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return "", runner.Errorf(runner.NotFound, "check plugin file: %w", err).WithHint("a path counts from the directory that the command is started in")
	}
	info, err := os.Stat(full)
	if err != nil {
		return "", runner.Errorf(runner.NotFound, "check plugin file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", runner.Errorf(runner.Invalid, "check plugin file %s: want a regular file, got %s", full, info.Mode().Type())
	}
	if err := owned(full, info, false); err != nil {
		return "", err
	}
	for dir := filepath.Dir(full); ; dir = filepath.Dir(dir) {
		if info, err = os.Stat(dir); err != nil {
			return "", runner.Errorf(runner.NotFound, "check plugin file: %w", err)
		}
		if err := owned(dir, info, true); err != nil {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return full, nil
		}
	}
}

// owned judges one file or directory. In a sticky directory only the owner of
// a file may rename it, so everybody may write there.
func owned(path string, info os.FileInfo, directory bool) error {
	mode := info.Mode()
	if mode.Perm()&0o002 != 0 && !(directory && mode&os.ModeSticky != 0) {
		return runner.Errorf(runner.Invalid, "check plugin file: %s: want one that only its owner may change, got mode %s", path, mode).
			WithHint("`chmod o-w %s`", path)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Getuid() {
		return runner.Errorf(runner.Invalid, "check plugin file: %s: want an owner of uid 0 or %d, got %d", path, os.Getuid(), s.Uid)
	}
	return nil
}
