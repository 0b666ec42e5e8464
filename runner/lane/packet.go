package lane

import (
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two calls that every order and reply goes through. Neither waits, so they
// are made without telling Go's scheduler that they might: being told wakes its
// monitor, which then looks some twenty times at a call that was over before it
// could look once, and that costs more CPU time than the packet does.

// receivePacket takes one packet off a socket, with its control messages;
// EAGAIN where there is none, io.EOF where the other end is closed.
func receivePacket(fd uintptr, b, oob []byte) (n, oobn, flags int, err error) {
	var m unix.Msghdr
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	m.Iov = &v
	m.SetIovlen(1)
	m.Control = &oob[0]
	m.SetControllen(len(oob))
	r, _, e := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&m)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case e != 0:
		return 0, 0, 0, e
	case r == 0 && m.Controllen == 0: // no frame is empty
		return 0, 0, 0, io.EOF
	}
	return int(r), int(m.Controllen), int(m.Flags), nil
}

// sendPacket gives one packet to a socket, with control messages; EAGAIN where
// there is no room.
func sendPacket(fd uintptr, b, oob []byte) error {
	var m unix.Msghdr
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	m.Iov = &v
	m.SetIovlen(1)
	if len(oob) > 0 {
		m.Control = &oob[0]
		m.SetControllen(len(oob))
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); e != 0 {
		return e
	}
	return nil
}
