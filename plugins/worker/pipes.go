package worker

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
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

// keepOpen holds file open in a message that is never read, in a socket pair of
// our own. When this process dies the kernel closes its files in no order that
// can be relied on, but what lies in a socket's queue is let go only after the
// sockets are: so file outlives every descriptor that this process has.
func keepOpen(file *os.File) (release func(), err error) {
	fd, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	release = func() { unix.Close(fd[0]); unix.Close(fd[1]) }
	if err := unix.Sendmsg(fd[0], []byte{0}, unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
		release()
		return nil, os.NewSyscallError("sendmsg", err)
	}
	return release, nil
}

// armDeathPipe makes the kernel send SIGKILL to process group pgid as soon as
// the last write end of the pipe closes, which is when the supervisor dies.
// The flags live on the open file that the worker inherits, so neither its GIL
// nor a SIGSTOP can delay it. The read end must be kept open (keepOpen): the
// worker's own parent-death signal may end it, and with it the last reader,
// before the write end closes, and its children would live on. The kernel holds the group itself, not its
// number: a later group of the same number is safe.
func armDeathPipe(read *os.File, pgid int) error {
	fd := read.Fd()
	_, err1 := unix.FcntlInt(fd, unix.F_SETOWN, -pgid)
	_, err2 := unix.FcntlInt(fd, unix.F_SETSIG, int(unix.SIGKILL))
	flags, err3 := unix.FcntlInt(fd, unix.F_GETFL, 0)
	_, err4 := unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_ASYNC)
	return errors.Join(err1, err2, err3, err4)
}

// closeAll closes what is not nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
