package bench

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// echo is a Python process that sends every packet back.
type echo struct {
	cmd  *exec.Cmd
	conn *net.UnixConn
	buf  [1 << 16]byte
}

// startEcho starts it on one end of a SOCK_SEQPACKET pair, which a lane is too.
func startEcho(ctx context.Context, p *Python) (*echo, error) {
	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	e := &echo{cmd: p.command(ctx, "echo.py", "3"), conn: conn}
	e.cmd.ExtraFiles, e.cmd.Stderr = []*os.File{theirs}, os.Stderr
	if err := e.cmd.Start(); err != nil {
		conn.Close()
		return nil, runner.Errorf(runner.Unavailable, "start echo: %w", err)
	}
	return e, nil
}

// ping sends a packet and waits for it to come back.
func (e *echo) ping(packet []byte) (time.Duration, error) {
	begun := time.Now()
	if _, err := e.conn.Write(packet); err != nil {
		return 0, runner.Errorf(runner.Unavailable, "send packet: %w", err)
	}
	n, err := e.conn.Read(e.buf[:])
	took := time.Since(begun)
	if err != nil {
		return 0, runner.Errorf(runner.Unavailable, "receive packet: %w", err)
	}
	if !bytes.Equal(e.buf[:n], packet) {
		return 0, runner.Errorf(runner.Internal, "receive packet: want the %d bytes that were sent, got %d others", len(packet), n)
	}
	return took, nil
}

// stop closes the socket, upon which the process ends.
func (e *echo) stop() {
	_ = e.conn.Close()
	_ = e.cmd.Wait() // its figures are in; how it ends says nothing
}
