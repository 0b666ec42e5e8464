package worker

import (
	"context"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// dialWorker connects to a worker's socket and makes sure that the process
// which listens there is the one that was spawned: pid, of our own user.
func dialWorker(ctx context.Context, path string, pid int) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "connect to worker: %w", err)
	}
	peer, err := peerOf(conn.(*net.UnixConn))
	if err == nil && (int(peer.Pid) != pid || int(peer.Uid) != os.Getuid()) {
		err = runner.Errorf(runner.Invalid, "connect to worker: peer of %s: want pid %d of uid %d, got pid %d of uid %d",
			path, pid, os.Getuid(), peer.Pid, peer.Uid)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// peerOf asks the kernel who listens at the other end.
func peerOf(conn *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	outer := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if outer != nil {
		return nil, outer
	}
	return peer, os.NewSyscallError("getsockopt", err)
}
