package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dflash-runner/dflash-runner/runner"
)

// trusted refuses a file that somebody else could change: one that its group or
// everybody may write, that is another user's, or that lies below a directory
// where they may rename it. All such places of a path are told at once. It gives
// the file's path without links.
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
	var open writable
	if err := open.judge(full, info, false); err != nil {
		return "", err
	}
	for dir := filepath.Dir(full); ; dir = filepath.Dir(dir) {
		if info, err = os.Stat(dir); err != nil {
			return "", runner.Errorf(runner.NotFound, "check plugin file: %w", err)
		}
		if err := open.judge(dir, info, true); err != nil {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return full, open.err()
		}
	}
}

// writable are places that others may change, with their modes.
type writable []string

// judge notes one file or directory, if others may write it; another owner is
// an error at once. In a sticky directory only the owner of a file may rename
// it, so anybody may write there. A group that has no member but this user is
// nobody else: new files are its where the umask is 0002.
func (w *writable) judge(path string, info os.FileInfo, directory bool) error {
	s, ok := info.Sys().(*syscall.Stat_t)
	if ok && s.Uid != 0 && int(s.Uid) != os.Getuid() {
		owners := "root"
		if os.Getuid() != 0 {
			owners += fmt.Sprintf(" or uid %d", os.Getuid())
		}
		return runner.Errorf(runner.Invalid, "check plugin file: %s: want %s as its owner, got uid %d", path, owners, s.Uid)
	}
	mode := info.Mode()
	group := mode.Perm()&0o020 != 0 && !(ok && ownGroup(s.Gid))
	if (group || mode.Perm()&0o002 != 0) && !(directory && mode&os.ModeSticky != 0) {
		*w = append(*w, path, mode.String())
	}
	return nil
}

// err refuses the places that were noted.
func (w writable) err() error {
	if len(w) == 0 {
		return nil
	}
	var said, paths []string
	for i := 0; i < len(w); i += 2 {
		said, paths = append(said, w[i]+" with mode "+w[i+1]), append(paths, quoted(w[i]))
	}
	return runner.Errorf(runner.Invalid, "check plugin file: want what only its owner may change, got %s", strings.Join(said, ", ")).
		WithHint("`chmod go-w %s`", strings.Join(paths, " "))
}

// quoted keeps a path that a shell would take apart in one piece.
func quoted(path string) string {
	if strings.ContainsAny(path, " \t\n'\"$`\\*?&|;<>()[]{}!#~") {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}

// ownGroup says whether a group is this user's alone; tests say so themselves.
var ownGroup = byFiles

// byFiles says it by the machine's own files. A group that they do not know, as
// of a directory service, is not.
func byFiles(gid uint32) bool {
	users, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return false
	}
	groups, err := os.ReadFile("/etc/group")
	return err == nil && private(os.Getuid(), gid, string(users), string(groups))
}

// private says whether a group is the primary one of a user, bears the user's
// name, and has nobody else in it.
func private(uid int, gid uint32, users, groups string) bool {
	name, id, group := "", strconv.Itoa(uid), strconv.FormatUint(uint64(gid), 10)
	for line := range strings.Lines(users) {
		f := strings.Split(strings.TrimSpace(line), ":")
		switch {
		case len(f) < 4 || f[3] != group:
		case f[2] != id:
			return false // another's primary group
		default:
			name = f[0]
		}
	}
	for line := range strings.Lines(groups) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= 4 && f[2] == group {
			return name != "" && f[0] == name && (f[3] == "" || f[3] == name)
		}
	}
	return false
}
