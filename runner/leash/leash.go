// Package leash ties process groups to the life of this process.
package leash

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Leash ends a process group when this process dies, however it dies: the
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
type Leash struct {
	write int
	queue [2]int
}

// New ties process group pgid to this process. The kernel holds the group
// itself, not its number: a later group of the same number is safe.
func New(pgid int) (*Leash, error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	read, write := fd[0], fd[1]
	if err := arm(read, pgid); err != nil {
		return nil, errors.Join(err, unix.Close(read), unix.Close(write))
	}
	queue, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		// The read end goes first, so that the group is not killed from here.
		return nil, errors.Join(os.NewSyscallError("socketpair", err), unix.Close(read), unix.Close(write))
	}
	l := &Leash{write: write, queue: queue}
	err = unix.Sendmsg(queue[0], []byte{0}, unix.UnixRights(read), nil, 0)
	unix.Close(read) // first here too, where it was not sent
	if err != nil {
		l.Release()
		return nil, os.NewSyscallError("sendmsg", err)
	}
	return l, nil
}

// Release lets go of the leash, once, and so kills what is left of the group.
func (l *Leash) Release() {
	unix.Close(l.write)
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
