package worker

import (
	"context"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	hrunner "github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// maxMessage bounds one gRPC message from a worker, in bytes.
const maxMessage = 1 << 20

// startSlack is how much later go-plugin's own start deadline lies than ours,
// which first asks the worker for its stacks.
const startSlack = 30 * time.Second

// LaunchError is a launch that did not succeed; the process is gone, and
// Failure is its whole report.
type LaunchError struct {
	Failure runner.Failure
	Err     error
}

// Error gives the message; the hint is in Failure.
func (e *LaunchError) Error() string { return e.Err.Error() }

// Unwrap gives the error with its kind and hint.
func (e *LaunchError) Unwrap() error { return e.Err }

// Launch starts the worker of spec and takes it up to Configured. When it
// fails, the process and all its descendants are gone and reaped before it
// returns a *LaunchError.
func Launch(ctx context.Context, spec Spec) (*Process, error) {
	p := &Process{spec: spec, launched: make(chan struct{}), done: make(chan struct{}), lastSign: -1, phase: "start"}
	err := p.prepare()
	for _, s := range []struct {
		phase string
		limit time.Duration
		run   func(context.Context) error
	}{
		{"handshake", spec.StartTimeout, p.shakeHands},
		{"describe", spec.DescribeTimeout, p.describe},
		{"configure", spec.ConfigureTimeout, p.configure},
	} {
		if err == nil {
			err = p.step(ctx, s.phase, s.limit, s.run)
		}
	}
	if err != nil {
		return nil, p.giveUp(err)
	}
	p.setPhase("waiting")
	close(p.launched)
	return p, nil
}

// prepare checks the spec and makes the log and go-plugin's client; nothing is
// started yet.
func (p *Process) prepare() error {
	if p.spec.PingEvery == 0 {
		p.spec.PingEvery = time.Second
	}
	p.log = &lifeLog{logger: hclog.NewNullLogger()}
	if err := p.spec.check(); err != nil {
		return err
	}
	life := p.spec.Life
	logger := p.spec.Logger.With("worker", life.Worker.String(), "generation", int(life.Generation))
	log, err := openLog(p.spec.LogPath, logLimit, logger)
	if err != nil {
		return err
	}
	p.log = log
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  Handshake(),
		Plugins:          plugin.PluginSet{PluginName: stub{}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		StartTimeout:     p.spec.StartTimeout + startSlack,
		SkipHostEnv:      true,
		RunnerFunc:       p.makeRunner,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: p.spec.RuntimeDir},
		Logger:           hclog.NewNullLogger(), // what it would say, the report says
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithContextDialer(p.dial),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		},
	})
	return nil
}

// makeRunner is called by go-plugin once, inside Start.
func (p *Process) makeRunner(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (hrunner.Runner, error) {
	p.runner = newHostRunner(childSpec{
		argv: p.spec.Argv, env: Environment(os.Environ(), p.spec.Env), dir: p.spec.Dir,
		nonce: p.spec.mark(), lane: true, lineLimit: maxLine,
	}, p.log, p.spawned, cmd, socketDir)
	return p.runner, nil
}

// spawned is called as soon as there is a process to look after.
func (p *Process) spawned(c *child) {
	p.mu.Lock()
	p.child = c
	condemned := p.verdict != nil
	p.mu.Unlock()
	if condemned { // the launch was given up before there was anything to kill
		c.signal(syscall.SIGKILL, true)
	}
	go p.watch(c) // ends with the child; done says so
}

// dial connects for gRPC, to the checked address only.
func (p *Process) dial(ctx context.Context, _ string) (net.Conn, error) {
	return dialWorker(ctx, p.runner.address, p.live().pid)
}

// shakeHands spawns the process, reads its handshake, makes sure of its peer
// and opens both connections.
func (p *Process) shakeHands(ctx context.Context) error {
	if _, err := p.client.Start(); err != nil {
		if p.live() == nil {
			p.mu.Lock()
			p.startErr = err
			p.mu.Unlock()
		}
		return p.refusedHandshake(err)
	}
	conn, err := p.dial(ctx, "")
	if err != nil {
		return err
	}
	pinger, err := startPinger(conn, p.spec.PingEvery)
	if err != nil {
		return runner.Errorf(runner.Unavailable, "ping worker: %w", err)
	}
	p.mu.Lock()
	p.pinger = pinger
	p.mu.Unlock()
	protocol, err := p.client.Client()
	if err != nil {
		return runner.Errorf(runner.Unavailable, "connect to worker: %w", err)
	}
	p.connected = true
	raw, err := protocol.Dispense(PluginName)
	if err != nil {
		return runner.Errorf(runner.Internal, "dispense worker: %w", err)
	}
	p.control = workerv1.NewWorkerClient(raw.(*grpc.ClientConn))
	return nil
}

// refusedHandshake says in our words why go-plugin refused the handshake.
func (p *Process) refusedHandshake(err error) error {
	if p.runner != nil {
		if g, ok := p.runner.greeting.accepted(); ok {
			if own := g.check(p.runner.socketDir); own != nil {
				return own
			}
		}
	}
	return runner.Errorf(runner.Invalid, "start: %w", err)
}

func (p *Process) describe(ctx context.Context) (err error) {
	var trailer metadata.MD
	p.description, err = p.control.Describe(ctx, &workerv1.DescribeRequest{}, grpc.Trailer(&trailer))
	if err != nil {
		return refused(err, trailer)
	}
	if got := int(p.description.GetPid()); got != p.Pid() {
		return runner.Errorf(runner.Invalid, "check description: pid: want %d, got %d", p.Pid(), got)
	}
	if got := p.description.GetLaneVersion(); got != runner.LaneVersion {
		return runner.Errorf(runner.Invalid, "check description: lane version: want %d, got %d", runner.LaneVersion, got).
			WithHint("the Python package and this binary are of different versions: remake the environment")
	}
	return nil
}

func (p *Process) configure(ctx context.Context) (err error) {
	var trailer metadata.MD
	p.configured, err = p.control.Configure(ctx, p.spec.Configuration, grpc.Trailer(&trailer))
	return refused(err, trailer)
}

// giveUp ends a launch that failed and returns once the process is gone.
func (p *Process) giveUp(err error) error {
	close(p.launched)
	if c := p.live(); c == nil {
		p.mu.Lock()
		if p.startErr == nil {
			p.startErr = err
		}
		p.mu.Unlock()
		p.close()
	} else {
		p.Kill(runner.CauseLaunch, err.Error(), runner.HintOf(err))
		late := time.NewTimer(killWait + pluginKillWait)
		defer late.Stop()
		select {
		case <-p.done:
		case <-late.C:
			f := report(p.evidence(c))
			f.Message += "; it survives SIGKILL (uninterruptible sleep?)"
			return p.launchError(f, err)
		}
	}
	return p.launchError(p.Report(), err)
}

// launchError gives the error the kind of what went wrong first.
func (p *Process) launchError(f runner.Failure, err error) *LaunchError {
	kind := runner.Unavailable
	switch f.Cause {
	case runner.CauseKilled:
		kind = runner.Canceled
	case runner.CauseLaunch, runner.CauseProtocol, runner.CausePython:
		kind = kindOfCall(err)
	}
	return &LaunchError{f, runner.Errorf(kind, "launch %s: %s", p.spec.Life, f.Message).WithHint("%s", f.Hint)}
}
