package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

const (
	partnerWait = 3 * time.Minute // for one answer, a process's start included
	messageMax  = 1 << 16
)

// partner is a Python process that answers questions about an arena, with which
// descriptors may go, as on a lane.
type partner struct {
	name   string
	cmd    *exec.Cmd
	conn   *net.UnixConn
	stderr bytes.Buffer
	buf    [messageMax]byte
}

// startPartner starts pair.py on a device, cpu or UUIDs of GPUs with commas
// between them, which it is told as told.
func startPartner(ctx context.Context, p *Python, name, device, told string, threads int) (*partner, error) {
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	w := &partner{name: name, cmd: p.command(ctx, "pair.py", "3", told, fmt.Sprint(threads)), conn: conn}
	w.cmd.Env, w.cmd.ExtraFiles, w.cmd.Stderr = p.on(device, threads), []*os.File{theirs}, &w.stderr
	if err := w.cmd.Start(); err != nil {
		conn.Close()
		return nil, runner.Errorf(runner.Unavailable, "start %s: %w", name, err)
	}
	return w, nil
}

// socketPair makes a SOCK_SEQPACKET pair, which a lane is too: our end, and the
// one that a child gets.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, runner.Errorf(runner.Exhausted, "make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "partner"), os.NewFile(uintptr(fds[1]), "partner's end")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, runner.Errorf(runner.Internal, "open socket: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}

// ask puts a question, with a descriptor where fd is not nil, and decodes the
// answer. The descriptor that comes with the answer, or nil, is the caller's.
func (w *partner) ask(into any, what string, fd *os.File, fields map[string]any) (*os.File, error) {
	question := map[string]any{"what": what}
	for name, value := range fields {
		question[name] = value
	}
	text, err := json.Marshal(question)
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "ask %s: %w", w.name, err)
	}
	var rights []byte
	if fd != nil {
		rights = unix.UnixRights(int(fd.Fd()))
	}
	if err := w.conn.SetDeadline(time.Now().Add(partnerWait)); err != nil {
		return nil, runner.Errorf(runner.Internal, "ask %s: %w", w.name, err)
	}
	if _, _, err := w.conn.WriteMsgUnix(text, rights, nil); err != nil {
		return nil, w.gone(what, err)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(w.buf[:], oob)
	if err != nil || n == 0 {
		return nil, w.gone(what, err)
	}
	came, err := descriptor(oob[:oobn])
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "ask %s: %s: %w", w.name, what, err)
	}
	if told := refusal(w.buf[:n]); told != nil {
		return came, runner.Errorf(runner.KindOf(told), "ask %s: %s: %w", w.name, what, told)
	}
	if into == nil {
		return came, nil
	}
	if err := json.Unmarshal(w.buf[:n], into); err != nil {
		return came, runner.Errorf(runner.Internal, "ask %s: %s: %w", w.name, what, err)
	}
	return came, nil
}

// descriptor gives the one that came beside a message, or nil.
func descriptor(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("read descriptor: want one message, got %d: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("read descriptor: want one, got %d: %w", len(fds), err)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "arena"), nil
}

// gone says how a process ended that did not answer.
func (w *partner) gone(what string, cause error) error {
	_ = w.cmd.Process.Kill() // it may be hung instead
	err := w.cmd.Wait()
	return runner.Errorf(runner.Internal, "ask %s: %s: want an answer, got %v (%v): %s", w.name, what, cause, err, lastLine(w.stderr.Bytes()))
}

// stop closes the socket, upon which the process ends.
func (w *partner) stop() {
	_ = w.conn.Close()
	_ = w.cmd.Wait() // its figures are in; how it ends says nothing
}
