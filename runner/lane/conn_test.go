package lane

import (
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair gives the supervisor's and the worker's half of one lane.
func pair(t *testing.T) (ours, theirs *Conn) {
	t.Helper()
	ours, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	theirs, err = FromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	return ours, theirs
}

func memfd(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("lane test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "lane test")
	t.Cleanup(func() { f.Close() })
	return f
}

// raw sends bytes and descriptors past the worker's half.
func raw(t *testing.T, c *Conn, b []byte, files ...*os.File) {
	t.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := c.c.WriteMsgUnix(b, rights, nil); err != nil {
		t.Fatal(err)
	}
}

// alone sends a descriptor and no byte, which Go's own calls add.
func alone(t *testing.T, c *Conn, f *os.File) {
	t.Helper()
	rights := unix.UnixRights(int(f.Fd()))
	m := unix.Msghdr{Control: &rights[0]}
	m.SetControllen(len(rights))
	err := c.raw.Control(func(fd uintptr) {
		if _, _, e := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&m)), unix.MSG_DONTWAIT); e != 0 {
			t.Error(e)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestOrdersAndRepliesCross(t *testing.T) {
	ours, theirs := pair(t)
	for i, o := range testOrders() {
		var f *os.File
		if NeedsFD(o) {
			f = memfd(t)
		}
		if err := ours.Send(uint64(i+1), o, f); err != nil {
			t.Fatalf("%T: %v", o, err)
		}
		seq, got, file, err := theirs.ReceiveOrder()
		if err != nil || seq != uint64(i+1) || !reflect.DeepEqual(got, o) || (file != nil) != NeedsFD(o) {
			t.Fatalf("%T: got %d %+v %v, %v", o, seq, got, file, err)
		}
		if file != nil {
			flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%T: the descriptor would leak into children: flags %d, %v", o, flags, err)
			}
			file.Close()
		}
	}
	for i, r := range testReplies() {
		var f *os.File
		if ReplyNeedsFD(r) {
			f = memfd(t)
		}
		if err := theirs.SendReply(uint64(i+1), r, f); err != nil {
			t.Fatalf("%T: %v", r, err)
		}
		seq, got, file, err := ours.Receive()
		if err != nil || seq != uint64(i+1) || !reflect.DeepEqual(got, r) || (file != nil) != ReplyNeedsFD(r) {
			t.Fatalf("%T: got %d %+v %v, %v", r, seq, got, file, err)
		}
		if file != nil {
			flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%T: the descriptor would leak into children: flags %d, %v", r, flags, err)
			}
			file.Close()
		}
	}
}

func TestDescriptorMustMatchTheOrder(t *testing.T) {
	ours, theirs := pair(t)
	arena := testOrders()[0]
	if err := ours.Send(1, arena, nil); runner.KindOf(err) != runner.Internal || err == nil {
		t.Errorf("arena without: got %v, want kind internal", err)
	}
	if err := ours.Send(1, runner.Drain{}, memfd(t)); runner.KindOf(err) != runner.Internal || err == nil {
		t.Errorf("drain with: got %v, want kind internal", err)
	}
	if err := theirs.SendReply(1, runner.Created{Arena: 1}, nil); runner.KindOf(err) != runner.Internal || err == nil {
		t.Errorf("created without: got %v, want kind internal", err)
	}
	if err := theirs.SendReply(1, runner.Drained{}, memfd(t)); runner.KindOf(err) != runner.Internal || err == nil {
		t.Errorf("drained with: got %v, want kind internal", err)
	}
	b, err := EncodeOrder(1, runner.Drain{})
	if err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	raw(t, ours, b, os.Stdin)
	if _, _, _, err := theirs.ReceiveOrder(); runner.KindOf(err) != runner.Invalid || err == nil {
		t.Errorf("drain with: received %v, want kind invalid", err)
	}
	if after := openFDs(t); after != before {
		t.Errorf("got %d descriptors open, want %d", after, before)
	}
}

// TestHostilePackets: each is an error of kind invalid, and no descriptor stays open.
func TestHostilePackets(t *testing.T) {
	drained, err := EncodeReply(1, runner.Drained{})
	if err != nil {
		t.Fatal(err)
	}
	created, err := EncodeReply(1, runner.Created{Arena: 1})
	if err != nil {
		t.Fatal(err)
	}
	f := memfd(t)
	many := make([]*os.File, 40)
	for i := range many {
		many[i] = f
	}
	for name, send := range map[string]func(*Conn){
		"a descriptor":          func(c *Conn) { raw(t, c, drained, f) },
		"more than fit":         func(c *Conn) { raw(t, c, drained, many...) },
		"created without":       func(c *Conn) { raw(t, c, created) },
		"created with two":      func(c *Conn) { raw(t, c, created, f, f) },
		"created with many":     func(c *Conn) { raw(t, c, created, many...) },
		"too long":              func(c *Conn) { raw(t, c, make([]byte, MaxFrame+1)) },
		"not msgpack":           func(c *Conn) { raw(t, c, []byte("hello")) },
		"an order":              func(c *Conn) { raw(t, c, mustOrder(t)) },
		"two frames in one":     func(c *Conn) { raw(t, c, append(append([]byte(nil), drained...), drained...)) },
		"killer":                func(c *Conn) { raw(t, c, []byte{0xdd, 0xff, 0xff, 0xff, 0xff}) },
		"a descriptor alone":    func(c *Conn) { alone(t, c, f) },
		"killer and descriptor": func(c *Conn) { raw(t, c, []byte{0xdd, 0xff, 0xff, 0xff, 0xff}, f, f) },
	} {
		ours, theirs := pair(t)
		before := openFDs(t)
		send(theirs)
		if _, r, _, err := ours.Receive(); err == nil || runner.KindOf(err) != runner.Invalid {
			t.Errorf("%s: got %v, %v, want kind invalid", name, r, err)
		}
		if after := openFDs(t); after != before {
			t.Errorf("%s: got %d descriptors open, want %d", name, after, before)
		}
	}
}

func mustOrder(t *testing.T) []byte {
	t.Helper()
	b, err := EncodeOrder(1, runner.Drain{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestStoppedWorkerDoesNotBlock: Send gives up at once when the worker does not read.
func TestStoppedWorkerDoesNotBlock(t *testing.T) {
	ours, _ := pair(t)
	for seq := uint64(1); seq < 1<<20; seq++ {
		if err := ours.Send(seq, testOrders()[3], nil); err != nil {
			if runner.KindOf(err) != runner.Exhausted {
				t.Errorf("got %v, want kind exhausted", err)
			}
			if seq < 20 {
				t.Errorf("the lane was full after %d orders, want room for 20", seq-1)
			}
			return
		}
	}
	t.Error("the lane was never full")
}

// TestRepliesOfADeadWorkerAreRead: a worker that dies with orders unread resets
// the socket; what it had said before still arrives, then the end.
func TestRepliesOfADeadWorkerAreRead(t *testing.T) {
	ours, theirs := pair(t)
	if err := ours.Send(1, runner.Drain{}, nil); err != nil {
		t.Fatal(err)
	}
	last := runner.Failed{Kind: runner.Fatal, Message: "last words", Traceback: []string{}}
	if err := theirs.SendReply(1, last, nil); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if _, r, _, err := ours.Receive(); err != nil || !reflect.DeepEqual(r, last) {
		t.Fatalf("got %v, %v, want the last words", r, err)
	}
	if _, r, _, err := ours.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, %v, want EOF", r, err)
	}
	if err := ours.Send(2, runner.Drain{}, nil); runner.KindOf(err) != runner.Unavailable || err == nil {
		t.Errorf("send to the dead: got %v, want kind unavailable", err)
	}
}

// TestCloseEndsReceive: the reader goroutine stops when the lane is closed.
func TestCloseEndsReceive(t *testing.T) {
	ours, _ := pair(t)
	done := make(chan error, 1)
	go func() { _, _, _, err := ours.Receive(); done <- err }() // ends by Close below; awaited below
	ours.Close()
	select {
	case err := <-done:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want net.ErrClosed", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Receive did not end")
	}
}
