package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// SocketName is the socket, or a link to it, in the run's directory.
const SocketName = "supervisor.sock"

// maxSocketPath is what fits into a sockaddr_un everywhere, the zero included.
const maxSocketPath = 104

// SocketPath gives where a run's socket is: in its directory, or, where that
// path is too long for a socket, under a short name in a runtime directory.
func SocketPath(directory string) (string, error) {
	abs, err := filepath.Abs(directory)
	if err != nil {
		return "", runner.Errorf(runner.Internal, "name socket: %w", err)
	}
	if path := filepath.Join(abs, SocketName); len(path) < maxSocketPath {
		return path, nil
	}
	sum := sha256.Sum256([]byte(abs))
	return filepath.Join(runtimeName(), hex.EncodeToString(sum[:8])+".sock"), nil
}

// RuntimeDirectory gives this user's directory for sockets, 0700, making it
// where it is missing.
func RuntimeDirectory() (string, error) {
	dir := runtimeName()
	return dir, private(dir)
}

// runtimeName is short and this user's own.
func runtimeName() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && len(dir) < 64 && filepath.IsAbs(dir) {
		return filepath.Join(dir, "dflash-runner")
	}
	return filepath.Join("/tmp", "dflash-runner-"+strconv.Itoa(os.Getuid()))
}

// Listen opens the run's socket, 0600. A socket that a dead process left is
// removed; one that answers, or another file in its place, is an error.
func Listen(directory string) (net.Listener, error) {
	path, err := SocketPath(directory)
	if err != nil {
		return nil, err
	}
	link := filepath.Join(directory, SocketName)
	abs, err := filepath.Abs(link)
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "name socket: %w", err)
	}
	if path != abs {
		if err := private(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	if err := clear(path); err != nil {
		return nil, err
	}
	l, err := bind(path)
	if err != nil {
		return nil, err
	}
	s := &sameUser{UnixListener: l, allowed: os.Getuid()}
	if path != abs {
		if err := relink(path, abs); err != nil {
			_ = l.Close()
			return nil, err
		}
		s.link = abs
	}
	return s, nil
}

// bind makes the socket with mode 0600 from its birth: Linux takes the mode of
// the file from that of the socket.
func bind(path string) (*net.UnixListener, error) {
	var lc net.ListenConfig
	lc.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		if e := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "listen on %s: %w", path, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, runner.Errorf(runner.Internal, "listen on %s: want a unix listener, got %T", path, l)
	}
	return u, nil
}

// private makes a directory that only this user may enter.
func private(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return runner.Errorf(runner.Unavailable, "make runtime directory: %w", err)
	}
	s, err := os.Lstat(dir)
	if err != nil {
		return runner.Errorf(runner.Unavailable, "make runtime directory: %w", err)
	}
	owner, ok := s.Sys().(*syscall.Stat_t)
	if !ok || !s.IsDir() || int(owner.Uid) != os.Getuid() || s.Mode().Perm() != 0o700 {
		return runner.Errorf(runner.Invalid, "use runtime directory %s: want a directory of this user with mode 0700, got %s", dir, s.Mode()).
			WithHint("remove it, or set XDG_RUNTIME_DIR")
	}
	return nil
}

// clear removes a dead process's socket.
func clear(path string) error {
	s, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return runner.Errorf(runner.Unavailable, "look at socket: %w", err)
	}
	if s.Mode().Type() != fs.ModeSocket {
		return runner.Errorf(runner.Invalid, "listen on %s: want no file or a socket there, got %s", path, s.Mode()).WithHint("move that file away")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return runner.Errorf(runner.Unavailable, "listen on %s: another process answers there", path).WithHint("`dflash-runner status` shows the run")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return runner.Errorf(runner.Unavailable, "remove dead socket: %w", err)
	}
	return nil
}

// relink points the name in the run's directory at the socket.
func relink(path, link string) error {
	if s, err := os.Lstat(link); err == nil && s.Mode().Type() == fs.ModeSymlink {
		if err := os.Remove(link); err != nil {
			return runner.Errorf(runner.Unavailable, "link socket: %w", err)
		}
	}
	if err := os.Symlink(path, link); err != nil {
		return runner.Errorf(runner.Unavailable, "link socket: %w", err)
	}
	return nil
}

// sameUser lets in connections of one user alone. The mode of the socket says
// the same to everyone but root.
type sameUser struct {
	*net.UnixListener
	allowed int
	link    string // in the run's directory, or empty
}

// Close removes the socket and the link to it.
func (l *sameUser) Close() error {
	err := l.UnixListener.Close()
	if l.link != "" {
		if e := os.Remove(l.link); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Accept closes a stranger's connection and waits for the next.
func (l *sameUser) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peer(conn); err == nil && uid == l.allowed {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// peer gives the user at the other end.
func peer(conn *net.UnixConn) (uid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Uid), nil
}
