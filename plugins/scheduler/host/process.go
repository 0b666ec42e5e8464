package host

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	hrunner "github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/worker"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// stopWait bounds how long a plugin may take to end when it is asked to.
const stopWait = 3 * time.Second

// window is how much of an answer may be under way, in bytes. One that is named
// also keeps gRPC from measuring one: that takes a ping for nearly every answer.
const window = 4 << 20

// maxSocket is the longest path of a socket, in bytes.
const maxSocket = 107

// process is one start of a plugin.
type process struct {
	entry   Entry
	dir     string
	files   staged
	client  *plugin.Client
	hosted  *worker.Hosted // nil until go-plugin asked for it
	output  *lines         // what go-plugin carries of the plugin's streams
	ask     schedulerv1.SchedulerClient
	version uint32 // of the API
	info    *schedulerv1.InfoReply
	can     map[scheduler.Capability]bool

	arranging stream
	assigning stream
}

// stub makes go-plugin hand out the raw connection.
type stub struct{ plugin.NetRPCUnsupportedPlugin }

// GRPCServer serves nothing: hosts only dispense.
func (stub) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

// GRPCClient returns the *grpc.ClientConn itself.
func (stub) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

// launch stages, starts and configures a plugin. After an error nothing of it
// runs and its directory is gone.
func launch(ctx context.Context, e Entry, o Options, start int) (_ *process, err error) {
	p := &process{entry: e, output: &lines{}}
	if err = p.open(ctx, o, start); err == nil {
		err = p.configure(ctx, o)
	}
	if err != nil {
		ending := p.stop()
		return nil, errors.Join(p.died(err), ending)
	}
	return p, nil
}

// died adds to an error that a process ended by itself, where it did: then its
// last line says more than a broken connection. After stop.
func (p *process) died(err error) error {
	if err == nil || p.hosted == nil || runner.KindOf(err) != runner.Unavailable {
		return err
	}
	if _, _, _, ok := p.hosted.Greeted(); !ok {
		return err // it is said already
	}
	if how := p.fell(); how != "" {
		return runner.Errorf(runner.Invalid, "%w: it ended unasked, %s%s", err, how, p.lastWords())
	}
	return err
}

// fell says how a process ended that was not asked to; empty where it was, or
// ended well. After stop.
func (p *process) fell() string {
	if code, signal, ours := p.hosted.Ended(); ours || code <= 0 && signal == 0 {
		return ""
	}
	return p.hosted.Fate()
}

// open makes the plugin's directory, and starts its checked files from there.
func (p *process) open(ctx context.Context, o Options, start int) (err error) {
	if p.dir, err = os.MkdirTemp(o.Directory, "p-"); err != nil {
		return runner.Errorf(runner.Unavailable, "start plugin: %w", err)
	}
	if most := maxSocket - len("/plugin-dir1234567890/plugin1234567890"); len(p.dir) > most {
		return runner.Errorf(runner.Invalid, "start plugin: directory %s: want at most %d bytes, as a socket's path is short, got %d", p.dir, most, len(p.dir)).
			WithHint("give XDG_RUNTIME_DIR a shorter path")
	}
	if err := p.stage(o); err != nil {
		return err
	}
	return p.start(ctx, o, start)
}

// stage checks and copies what runs.
func (p *process) stage(o Options) (err error) {
	code := filepath.Join(p.dir, "code")
	entry, err := p.entry.interpreted(o)
	if err != nil {
		return err
	}
	if p.files, err = stage(entry, code); err == nil && o.Staged != nil {
		o.Staged(code)
	}
	if err == nil {
		err = p.files.unchanged()
	}
	return errors.Join(err, os.Mkdir(filepath.Join(p.dir, "work"), 0o700))
}

// environment is all that a plugin sees of the host's.
func (p *process) environment(o Options) (out []string) {
	for _, entry := range o.Environ {
		name, _, ok := strings.Cut(entry, "=")
		for _, allowed := range p.entry.Env {
			if ok && name == allowed {
				out = append(out, entry)
			}
		}
	}
	return out
}

// start spawns the process and connects to it.
func (p *process) start(ctx context.Context, o Options, number int) error {
	c := &plugin.ClientConfig{
		HandshakeConfig:  scheduler.Handshake(),
		Plugins:          plugin.PluginSet{scheduler.PluginName: stub{}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		StartTimeout:     o.Start,
		SkipHostEnv:      true,
		AutoMTLS:         true,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: p.dir},
		Logger:           hclog.NewNullLogger(), // what it would say, our errors say
		SyncStdout:       p.output,
		SyncStderr:       p.output,
		GRPCDialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.hosted.Dial(ctx) }),
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(scheduler.MaxMessage))},
	}
	spec := worker.HostedSpec{Argv: p.files.argv, Env: p.environment(o), Dir: filepath.Join(p.dir, "work"), Nonce: "plugin:" + rand.Text(), LogLimit: logLimit}
	if o.LogPath != nil {
		spec.LogPath = o.LogPath(number)
		spec.LogCut = func(x worker.Cut) {
			if o.Cut != nil {
				o.Cut(spec.LogPath, x.Lines, x.Bytes)
			}
		}
	}
	var made *x509.CertPool // nil for a program that makes its own pair
	if p.entry.Script() {
		var err error
		if spec.Given, made, err = scriptPair(); err != nil {
			return err
		}
		spec.Env = append(spec.Env, pairVariable+strconv.Itoa(worker.GivenFD))
	}
	var begun atomic.Pointer[worker.Hosted] // p.hosted, for whoever gives up meanwhile
	over := make(chan struct{})
	defer close(over)
	c.RunnerFunc = func(_ hclog.Logger, cmd *exec.Cmd, sockets string) (_ hrunner.Runner, err error) {
		if err := smallerKey(c, cmd); err != nil {
			return nil, err
		}
		if p.hosted, err = worker.NewHosted(spec, cmd, sockets); err != nil {
			return nil, err
		}
		p.output.to(p.hosted)
		begun.Store(p.hosted)
		return p.hosted, ctx.Err() // given up before: nothing is started
	}
	p.client = plugin.NewClient(c)
	giveUp := context.AfterFunc(ctx, func() { // ends with the start or the kill, which is bounded
		h := begun.Load()
		if h == nil {
			return
		}
		select {
		case <-h.Started():
			_ = h.Kill(context.Background()) // a process that survives is named by stop
		case <-over:
		}
	})
	defer giveUp()
	done, began := o.Waits.begin("handshake", o.Start), time.Now()
	_, err := p.client.Start()
	if done(); err != nil {
		return p.refused(err, time.Since(began), o.Start)
	}
	if err := shows(c, made); err != nil {
		return err
	}
	return p.connect()
}

// connect makes the typed client; the first call makes the connection.
func (p *process) connect() error {
	protocol, err := p.client.Client()
	if err != nil {
		return runner.Errorf(runner.Unavailable, "connect to plugin: %w", err)
	}
	raw, err := protocol.Dispense(scheduler.PluginName)
	if err != nil {
		return runner.Errorf(runner.Internal, "dispense plugin: %w", err)
	}
	p.ask = schedulerv1.NewSchedulerClient(raw.(*grpc.ClientConn))
	return nil
}

// refused says in our words why there is no handshake.
func (p *process) refused(err error, after, limit time.Duration) error {
	const hint = "is it a scheduling plugin? one calls scheduler.Serve, in Python scheduler.serve, in its main"
	if p.hosted == nil || p.hosted.Pid() == 0 {
		return runner.Errorf(runner.Invalid, "start plugin: %w", err).WithHint("the file must be a program for this machine")
	}
	if core, version, wire, ok := p.hosted.Greeted(); ok {
		switch {
		case core != plugin.CoreProtocolVersion:
			return runner.Errorf(runner.Invalid, "start plugin: core protocol: want %d, got %d", plugin.CoreProtocolVersion, core)
		case version != scheduler.ProtocolVersion:
			return runner.Errorf(runner.Invalid, "start plugin: protocol version: want %d, got %d", scheduler.ProtocolVersion, version).
				WithHint("build the plugin with an SDK of this version")
		case wire != string(plugin.ProtocolGRPC):
			return runner.Errorf(runner.Invalid, "start plugin: wire protocol: want grpc, got %q", wire)
		}
		return runner.Errorf(runner.Invalid, "start plugin: %w", err)
	}
	select {
	case <-p.hosted.Exited():
		if after < limit { // else go-plugin ended it
			return runner.Errorf(runner.Invalid, "start plugin: it ended before its handshake, %s%s", p.hosted.Fate(), p.lastWords()).WithHint(hint)
		}
	default:
	}
	return runner.Errorf(runner.Unavailable, "start plugin: no handshake within %s%s", limit, p.lastWords()).WithHint(hint)
}

// lastWords gives the last line that the process printed.
func (p *process) lastWords() string {
	stderr, stdout := p.hosted.Said()
	for _, all := range [][]string{stderr, stdout} {
		if n := len(all); n > 0 {
			return fmt.Sprintf("; its last line: %.200q", all[n-1])
		}
	}
	return ""
}

// stop asks the process to end, ends it, and removes its directory.
func (p *process) stop() (err error) {
	if p.client != nil && p.hosted != nil {
		gone := make(chan struct{})
		go func() { // ends with go-plugin's kill: the process's end frees it
			defer close(gone)
			p.client.Kill()
		}()
		late := time.NewTimer(stopWait)
		defer late.Stop()
		select {
		case <-gone:
		case <-late.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), stopWait)
		defer cancel()
		err = p.hosted.End(ctx)
		select {
		case <-gone:
		case <-ctx.Done():
			err = errors.Join(err, runner.Errorf(runner.Unavailable, "stop plugin: go-plugin does not let go of it"))
		}
	}
	if p.dir != "" {
		err = errors.Join(err, os.RemoveAll(p.dir))
	}
	return err
}
