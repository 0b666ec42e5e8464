package lane

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// replyWait bounds how long a worker's half waits for room. The supervisor's
// half never waits.
const replyWait = 5 * time.Second

// Conn is one end of a lane. The supervisor calls Send from its one loop and
// Receive from one reader goroutine; a worker SendReply from any, ReceiveOrder
// from one. Close may come from any goroutine and ends a Receive.
type Conn struct {
	c   *net.UnixConn
	raw syscall.RawConn // of c
	buf []byte          // of the one receiver
	oob []byte          // likewise
}

// New takes over c, one end of a SOCK_SEQPACKET pair.
func New(c *net.UnixConn) *Conn {
	raw, _ := c.SyscallConn() // never fails of a connection that is there
	return &Conn{c: c, raw: raw, buf: make([]byte, MaxFrame), oob: make([]byte, unix.CmsgSpace(4*4))}
}

// Pair makes a lane: the supervisor's end, and the file that a worker inherits.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, runner.Errorf(runner.Exhausted, "make lane: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "lane"), os.NewFile(uintptr(fds[1]), "lane of worker")
	c, err := FromFile(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c, theirs, nil
}

// FromFile makes a Conn of an inherited end and closes f.
func FromFile(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, runner.Errorf(runner.Invalid, "open lane: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, runner.Errorf(runner.Invalid, "open lane: want a unix socket, got %s", c.LocalAddr().Network())
	}
	return New(u), nil
}

// Close ends the lane; the other side sees its end.
func (c *Conn) Close() error { return c.c.Close() }

// NeedsFD says whether a descriptor travels with o.
func NeedsFD(o runner.Order) bool {
	switch o := o.(type) {
	case runner.MapArena, runner.Load:
		return true
	case runner.Image:
		return o.Write
	case runner.Evaluate:
		return o.NBytes > 0
	}
	return false
}

// ReplyNeedsFD says whether a descriptor travels with r.
func ReplyNeedsFD(r runner.Reply) bool {
	_, ok := r.(runner.Created)
	return ok
}

// Send writes one order, with f's descriptor where the order needs one; f
// stays the caller's. It never waits: a worker that does not read until the
// socket is full gives kind exhausted, one that is gone kind unavailable. In
// both cases nothing was sent.
func (c *Conn) Send(seq uint64, o runner.Order, f *os.File) error {
	if NeedsFD(o) != (f != nil) {
		return runner.Errorf(runner.Internal, "send %s: descriptor: want %t, got %t", runner.OrderType(o), NeedsFD(o), f != nil)
	}
	b, err := EncodeOrder(seq, o)
	if err != nil {
		return err
	}
	var sent error
	err = withFD(f, func(rights []byte) error {
		return c.raw.Write(func(fd uintptr) bool {
			sent = ignoringEINTR(func() error { return sendPacket(fd, b, rights) })
			return true // do not wait for room
		})
	})
	return sendError(runner.OrderType(o), errors.Join(err, sent))
}

// SendReply writes one reply, with f's descriptor where the reply needs one; f
// stays the caller's. It is the worker's half, and waits up to replyWait for room.
func (c *Conn) SendReply(seq uint64, r runner.Reply, f *os.File) error {
	if ReplyNeedsFD(r) != (f != nil) {
		return runner.Errorf(runner.Internal, "send %s: descriptor: want %t, got %t", runner.ReplyType(r), ReplyNeedsFD(r), f != nil)
	}
	b, err := EncodeReply(seq, r)
	if err != nil {
		return err
	}
	if err := c.c.SetWriteDeadline(time.Now().Add(replyWait)); err != nil {
		return sendError(runner.ReplyType(r), err)
	}
	var sent error
	err = withFD(f, func(rights []byte) error {
		_, _, sent = c.c.WriteMsgUnix(b, rights, nil)
		return nil
	})
	return sendError(runner.ReplyType(r), errors.Join(err, sent))
}

// Receive reads one reply and the descriptor that travels with it, or nil; the
// file is the caller's. It gives io.EOF when the worker's end is closed, an
// error of kind invalid when the worker broke a rule, and net.ErrClosed after
// Close. After any error the lane is of no more use, and no descriptor is kept.
func (c *Conn) Receive() (uint64, runner.Reply, *os.File, error) {
	b, files, err := c.receive()
	if err != nil {
		return 0, nil, nil, err
	}
	seq, r, err := DecodeReply(b)
	if err != nil {
		closeAll(files)
		return 0, nil, nil, err
	}
	f, err := only(files, runner.ReplyType(r), ReplyNeedsFD(r))
	if err != nil {
		return 0, nil, nil, err
	}
	return seq, r, f, nil
}

// ReceiveOrder reads one order and the descriptor that travels with it, or
// nil; it is the worker's half.
func (c *Conn) ReceiveOrder() (uint64, runner.Order, *os.File, error) {
	b, files, err := c.receive()
	if err != nil {
		return 0, nil, nil, err
	}
	seq, o, err := DecodeOrder(b)
	if err != nil {
		closeAll(files)
		return 0, nil, nil, err
	}
	f, err := only(files, runner.OrderType(o), NeedsFD(o))
	if err != nil {
		return 0, nil, nil, err
	}
	return seq, o, f, nil
}

// only gives the one descriptor that a frame needs, or nil where it needs none;
// any other number is refused and closed.
func only(files []*os.File, typ string, needed bool) (*os.File, error) {
	switch {
	case needed && len(files) == 1:
		return files[0], nil
	case !needed && len(files) == 0:
		return nil, nil
	}
	closeAll(files)
	return nil, runner.Errorf(runner.Invalid, "receive %s: descriptor: want %t, got %d", typ, needed, len(files))
}

// receive reads one packet, valid until the next call, and what descriptors came with it.
func (c *Conn) receive() ([]byte, []*os.File, error) {
	n, oobn, flags, err := c.packet()
	if errors.Is(err, unix.ECONNRESET) {
		// The worker died with orders unread. The kernel says so once, before
		// the replies that it had sent: those still count.
		n, oobn, flags, err = c.packet()
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil, nil, io.EOF
	case errors.Is(err, net.ErrClosed):
		return nil, nil, net.ErrClosed
	case err != nil:
		return nil, nil, runner.Errorf(runner.Unavailable, "receive frame: %w", err)
	}
	files, err := takeFiles(c.oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeAll(files)
		return nil, nil, runner.Errorf(runner.Invalid, "receive frame: want at most %d bytes and one descriptor", MaxFrame)
	}
	return c.buf[:n], files, nil
}

// packet waits for the next packet.
func (c *Conn) packet() (n, oobn, flags int, err error) {
	closed := c.raw.Read(func(fd uintptr) bool {
		err = ignoringEINTR(func() (again error) {
			n, oobn, flags, again = receivePacket(fd, c.buf, c.oob)
			return again
		})
		return !errors.Is(err, unix.EAGAIN)
	})
	if closed != nil {
		err = closed
	}
	return n, oobn, flags, err
}

// takeFiles gives every descriptor in the control messages, so that none leaks.
func takeFiles(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, runner.Errorf(runner.Invalid, "read control messages: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not descriptors; nothing else was asked for
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received on lane"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// withFD calls use with f's rights message, keeping f open meanwhile; f may be nil.
func withFD(f *os.File, use func(rights []byte) error) error {
	if f == nil {
		return use(nil)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var used error
	err = raw.Control(func(fd uintptr) { used = use(unix.UnixRights(int(fd))) })
	return errors.Join(err, used)
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// sendError puts a kind on err, which may be nil.
func sendError(typ string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, os.ErrDeadlineExceeded):
		return runner.Errorf(runner.Exhausted, "send %s: the peer does not read, its lane is full", typ)
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
		return runner.Errorf(runner.Unavailable, "send %s: the lane is closed: %w", typ, err)
	default:
		return runner.Errorf(runner.Internal, "send %s: %w", typ, err)
	}
}
