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

// leash ends a process group when this process dies, however it dies: the
// kernel sends SIGKILL to the group as soon as the last write end of a pipe
// closes. The order rests on the read end alone. It must outlive the write end,
// or there is nobody left to be told; and this process, while it dies, closes
// its files in no order that can be relied on. So the read end lies in a message
// that is never read, in a socket pair of our own: what is queued in a socket is
// let go after every descriptor of the process. That holds only while nobody
// else has this read end too: a worker that had it, and that dies of its own
// parent-death signal in the same moment, could be the last to close it, before
// the write end, and its children would live on. The worker's death pipe is
// therefore another pipe.
type leash struct {
	write *os.File
	queue [2]int
}

// newLeash ties process group pgid to this process. The kernel holds the group
// itself, not its number: a later group of the same number is safe.
func newLeash(pgid int) (*leash, error) {
	read, write, err := pipe(true)
	if err != nil {
		return nil, err
	}
	defer read.Close()
	if err := arm(int(read.Fd()), pgid); err != nil {
		write.Close()
		return nil, err
	}
	queue, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		write.Close()
		return nil, os.NewSyscallError("socketpair", err)
	}
	l := &leash{write: write, queue: queue}
	if err := unix.Sendmsg(queue[0], []byte{0}, unix.UnixRights(int(read.Fd())), nil, 0); err != nil {
		// The read end goes first, so that the group is not killed from here.
		read.Close()
		l.release()
		return nil, os.NewSyscallError("sendmsg", err)
	}
	return l, nil
}

// release lets go of the leash, and so kills what is left of the group.
func (l *leash) release() {
	l.write.Close()
	unix.Close(l.queue[0])
	unix.Close(l.queue[1])
}

// arm makes the kernel send SIGKILL to process group pgid when the pipe of read
// has no writer any more. Neither a GIL nor a SIGSTOP can delay that.
func arm(read, pgid int) error {
	_, err1 := unix.FcntlInt(uintptr(read), unix.F_SETOWN, -pgid)
	_, err2 := unix.FcntlInt(uintptr(read), unix.F_SETSIG, int(unix.SIGKILL))
	flags, err3 := unix.FcntlInt(uintptr(read), unix.F_GETFL, 0)
	_, err4 := unix.FcntlInt(uintptr(read), unix.F_SETFL, flags|unix.O_ASYNC)
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
