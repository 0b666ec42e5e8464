package worker

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// pipe makes a pipe, close-on-exec. Only the host's end is non-blocking (so
// that it takes deadlines); the child's end must block as any stdio does.
func pipe(hostReads bool) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	host := fd[1]
	if hostReads {
		host = fd[0]
	}
	if err := unix.SetNonblock(host, true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fd[0]), unix.Close(fd[1]))
	}
	return os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe"), nil
}

// maxFilled is what any pipe holds before somebody reads, in bytes.
const maxFilled = 4096

// filled gives the read end of a pipe that holds b and then ends: what is in it
// was never in a file, and is gone once it is read.
func filled(b []byte) (*os.File, error) {
	if len(b) > maxFilled {
		return nil, runner.Errorf(runner.Internal, "fill pipe: want at most %d bytes, got %d", maxFilled, len(b))
	}
	r, w, err := pipe(false)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// lanePair makes the lane's socket pair: the host's end as a connection, the
// worker's as a file to inherit.
func lanePair() (host *net.UnixConn, child *os.File, err error) {
	fd, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	mine, child := os.NewFile(uintptr(fd[0]), "lane"), os.NewFile(uintptr(fd[1]), "lane")
	conn, err := net.FileConn(mine) // duplicates
	mine.Close()
	if err != nil {
		child.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), child, nil
}

// closeAll closes what is not nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
