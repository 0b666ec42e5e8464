package worker

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	hrunner "github.com/hashicorp/go-plugin/runner"

	"github.com/dflash-runner/dflash-runner/runner"
)

// HostedSpec says how to start another kind of plugin, which is kept as a
// worker is: a process group of its own that ends with this process, bounded
// lines, no descendant left. It inherits no lane and nothing of the host's
// environment.
type HostedSpec struct {
	Argv, Env []string
	Dir       string
	Nonce     string    // unique: descendants are found by it
	LogPath   string    // raw output; "" keeps none
	LogLimit  int64     // bytes of it
	LogCut    func(Cut) // told of what the log lost once it is full: the first line, totals, and all at the end; may be nil
	Given     []byte    // that the process may read once, from the descriptor GivenFD; nil: there is none
}

// GivenFD is where a hosted process reads HostedSpec.Given.
const GivenFD = 4

// Hosted is go-plugin's view of such a process, and its host's.
type Hosted struct {
	*hostRunner
	started chan struct{} // closed once there is a process
}

var _ hrunner.Runner = (*Hosted)(nil)

// NewHosted makes a runner for go-plugin's RunnerFunc; nothing is started yet.
// The log is closed by Close.
func NewHosted(spec HostedSpec, cmd *exec.Cmd, socketDir string) (*Hosted, error) {
	log, err := openLog(spec.LogPath, spec.LogLimit, hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	log.onCut = spec.LogCut
	h := &Hosted{started: make(chan struct{})}
	h.hostRunner = newHostRunner(childSpec{argv: spec.Argv, env: spec.Env, dir: spec.Dir, nonce: spec.Nonce, given: spec.Given, lineLimit: maxLine},
		log, func(*child) { close(h.started) }, cmd, socketDir)
	return h, nil
}

// PluginToHost refuses every address but a socket in the plugin's own directory.
func (h *Hosted) PluginToHost(network, address string) (string, string, error) {
	g, ok := h.greeting.accepted()
	switch {
	case !ok || g.Network != network || g.Address != address:
		return "", "", runner.Errorf(runner.Invalid, "check handshake: address %q was not announced", clean(address, 200))
	case g.Network != "unix" || !strings.HasPrefix(g.Address, h.socketDir+"/") || strings.Contains(g.Address, ".."):
		return "", "", runner.Errorf(runner.Invalid, "check handshake: want a socket in the plugin's directory, got %s %q", g.Network, clean(g.Address, 200))
	}
	h.address = address
	return network, address, nil
}

// Greeted gives the versions of the handshake that came; ok is false where none did.
func (h *Hosted) Greeted() (core, version int, wire string, ok bool) {
	g, ok := h.greeting.accepted()
	return g.Core, g.Version, clean(g.Wire, 40), ok
}

// Dial connects to the address that was checked, and to the process itself.
func (h *Hosted) Dial(ctx context.Context) (net.Conn, error) {
	return dialWorker(ctx, h.address, h.child.pid)
}

// Pid gives the process, 0 before there is one.
func (h *Hosted) Pid() int {
	select {
	case <-h.started:
		return h.child.pid
	default:
		return 0
	}
}

// Started is closed once there is a process.
func (h *Hosted) Started() <-chan struct{} { return h.started }

// Exited is closed once the process is dead; nil, which never is, before it began.
func (h *Hosted) Exited() <-chan struct{} {
	if h.Pid() == 0 {
		return nil
	}
	return h.child.exited
}

// End kills the group and waits, in a bound, until nothing of it is left; then
// it closes the log. It may be called once.
func (h *Hosted) End(ctx context.Context) error {
	defer h.log.close()
	if h.Pid() == 0 {
		return nil
	}
	return h.Kill(ctx)
}

// Ended says how the process ended, after End: its exit code, the signal or 0,
// and whether that signal was ours.
func (h *Hosted) Ended() (code int, s syscall.Signal, ours bool) {
	if h.Pid() == 0 {
		return -1, 0, false
	}
	status, forced := h.child.ended()
	return status.Code, status.Signal, forced
}

// Fate says in words how the process ended: "with exit code 3", "by SIGKILL".
// It waits, in a bound, until an exited process was reaped and its last lines
// were read; empty before one began. Not for a process that lives.
func (h *Hosted) Fate() string {
	if h.Pid() == 0 {
		return ""
	}
	<-h.child.done
	status, _ := h.child.ended()
	switch {
	case status.Signal == 0:
		return fmt.Sprintf("with exit code %d", status.Code)
	case status.OOM == "yes":
		return "by " + signalName(status.Signal) + ", for want of memory"
	}
	return "by " + signalName(status.Signal)
}

// Said gives the last lines of stderr, and what stdout held besides the handshake.
func (h *Hosted) Said() (stderr, stdout []string) {
	stderr, stdout, _ = h.log.kept()
	return stderr, stdout
}

// Printed gives how many bytes of lines came so far, in the log or not.
func (h *Hosted) Printed() uint64 { return h.log.amount() }

// Take notes a line that came by another way than the process's own stderr, as
// go-plugin carries them.
func (h *Hosted) Take(line []byte, cut bool) { h.log.stderr(line, cut) }
