package worker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	hrunner "github.com/hashicorp/go-plugin/runner"

	"github.com/dflash-runner/dflash-runner/runner"
)

// killWait bounds the wait for a killed process: one in uninterruptible sleep
// is reported, never waited for.
const killWait = 10 * time.Second

// hostRunner is go-plugin's view of a worker's process. go-plugin reads the
// handshake from it and nothing else: both streams are drained and parsed here,
// so no line can wedge the worker or panic the host.
type hostRunner struct {
	spec      childSpec
	log       *lifeLog
	socketDir string // made by go-plugin, removed by the Process
	greeting  *greetingReader
	spawned   func(*child) // told as soon as there is a process
	address   string       // of the greeting, once it was accepted; written by the caller of Start
	child     *child       // nil until started
}

var _ hrunner.Runner = (*hostRunner)(nil)

// newHostRunner is called by go-plugin with the variables that it adds.
func newHostRunner(spec childSpec, log *lifeLog, spawned func(*child), cmd *exec.Cmd, socketDir string) *hostRunner {
	r := &hostRunner{spec: spec, log: log, socketDir: socketDir, spawned: spawned, greeting: newGreetingReader()}
	r.spec.env = append(append([]string{}, spec.env...), cmd.Env...)
	r.spec.stdout, r.spec.stderr = r.takeStdout, log.stderr
	return r
}

// Start spawns the process.
func (r *hostRunner) Start(context.Context) error {
	if info, err := os.Stat(r.socketDir); err != nil || info.Mode().Perm() != 0o700 {
		return runner.Errorf(runner.Internal, "start worker: socket directory %s: want mode 0700: %v", r.socketDir, err)
	}
	c, err := startChild(r.spec)
	if err != nil {
		return err
	}
	r.child = c
	go func() { // ends with the child; go-plugin's reader of stdout waits for it
		<-c.exited
		r.greeting.end()
	}()
	r.spawned(c)
	return nil
}

// takeStdout lets the first line through that has a handshake's form; the rest
// is noise. One goroutine calls it.
func (r *hostRunner) takeStdout(line []byte, cut bool) {
	if !cut && r.greeting.offer(line) {
		return
	}
	r.log.stdout(line, cut)
}

// Wait returns when the process and its descendants are gone.
func (r *hostRunner) Wait(context.Context) error {
	<-r.child.done
	status, _ := r.child.ended()
	if status.Code != 0 {
		return fmt.Errorf("exit code %d, signal %d", status.Code, int(status.Signal))
	}
	return nil
}

// Kill ends the process group at once. go-plugin calls it when a start fails.
func (r *hostRunner) Kill(ctx context.Context) error {
	if r.child == nil {
		return nil
	}
	r.child.signal(syscall.SIGKILL, true)
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	select {
	case <-r.child.done:
		return nil
	case <-ctx.Done():
		return runner.Errorf(runner.Unavailable, "kill pid %d: it survives SIGKILL (uninterruptible sleep?)", r.child.pid)
	}
}

// Stdout gives the handshake line and then nothing.
func (r *hostRunner) Stdout() io.ReadCloser { return r.greeting }

// Stderr gives nothing: the lines are parsed by lifeLog, not by go-plugin.
func (r *hostRunner) Stderr() io.ReadCloser { return io.NopCloser(bytes.NewReader(nil)) }

// Name gives the program.
func (r *hostRunner) Name() string { return r.spec.argv[0] }

// ID gives the pid, "" before the start.
func (r *hostRunner) ID() string {
	if r.child == nil {
		return ""
	}
	return strconv.Itoa(r.child.pid)
}

// Diagnose adds nothing: the exit report says more than go-plugin's error would.
func (r *hostRunner) Diagnose(context.Context) string { return "" }

// PluginToHost refuses every address but a socket in the worker's own directory.
func (r *hostRunner) PluginToHost(network, address string) (string, string, error) {
	g, ok := r.greeting.accepted()
	if !ok || g.Network != network || g.Address != address {
		return "", "", runner.Errorf(runner.Invalid, "check handshake: address %q was not announced", clean(address, 200))
	}
	if err := g.check(r.socketDir); err != nil {
		return "", "", err
	}
	r.address = address
	return network, address, nil
}

// HostToPlugin changes nothing: host and worker share the file system.
func (r *hostRunner) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
