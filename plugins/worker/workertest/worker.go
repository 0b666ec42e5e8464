// Package workertest is a scripted worker in Go: it speaks the control plane
// over go-plugin as the Python worker does and hands the lane to a function. A
// test binary becomes it by starting itself again:
//
//	func TestMain(m *testing.M) {
//		if workertest.Wanted() != "" {
//			workertest.Main(workertest.Worker{Lane: serveLane})
//		}
//		os.Exit(m.Run())
//	}
//
// and starts it with the Spec that Spec gives.
package workertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// EnvName is the variable that turns a test binary into a worker; its value
// says which one.
const EnvName = "DFLASH_TEST_WORKER"

// Wanted gives which worker this process is to be, "" for none.
func Wanted() string { return os.Getenv(EnvName) }

// Worker is what the scripted worker does; nil fields do the right thing.
type Worker struct {
	Describe  func(ctx context.Context, d *workerv1.Description) error     // may change d
	Configure func(ctx context.Context, cfg *workerv1.Configuration) error // before the answer
	WarmUp    func(ctx context.Context, c *workerv1.Certificate) error     // may change c
	Lane      func(conn *net.UnixConn, cfg *workerv1.Configuration)        // once, from WarmUp's end; its return ends the worker with code 0
	Terminate func()                                                       // on SIGTERM; default: exit 0
	Answer    func(cfg *workerv1.Configuration, a *workerv1.Configured)    // may change a
	Progress  func(send func(*workerv1.WarmUpProgress) error) error        // default: one message a bucket
}

// Main serves until the process is ended; it never returns.
func Main(w Worker) {
	unix.CloseOnExec(3) // neither the death pipe nor the lane is for children
	unix.CloseOnExec(4)
	handleSignals(w.Terminate)
	quick := keepalive.EnforcementPolicy{MinTime: 10 * time.Millisecond, PermitWithoutStream: true}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: worker.Handshake(),
		Plugins:         plugin.PluginSet{worker.PluginName: &server{worker: w}},
		Logger:          hclog.NewNullLogger(),
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.KeepaliveEnforcementPolicy(quick))...)
		},
	})
	select {} // Shutdown ended the server; the process ends by signal, as Python's does
}

// handleSignals answers SIGTERM, and SIGUSR2 with stacks as faulthandler writes them.
func handleSignals(terminate func()) {
	if terminate == nil {
		terminate = func() { os.Exit(0) }
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR2)
	stderr := os.NewFile(2, "stderr") // go-plugin replaces os.Stderr
	go func() {                       // lives as long as the process
		for s := range signals {
			if s == syscall.SIGTERM {
				terminate()
				continue
			}
			fmt.Fprintln(stderr, "Current thread 0x00007f0000000000 (most recent call first):")
			pc := make([]uintptr, 8)
			frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
			for {
				f, more := frames.Next()
				fmt.Fprintf(stderr, "  File %q, line %d in %s\n", f.File, f.Line, f.Function)
				if !more {
					break
				}
			}
		}
	}()
}

// server implements the control plane.
type server struct {
	plugin.NetRPCUnsupportedPlugin
	workerv1.UnimplementedWorkerServer
	worker Worker

	mu  sync.Mutex // guards below
	cfg *workerv1.Configuration
}

// GRPCServer registers the control plane.
func (s *server) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	workerv1.RegisterWorkerServer(g, s)
	return nil
}

// GRPCClient is not for this side.
func (s *server) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fmt.Errorf("dispense: this is a worker")
}

// Describe implements workerv1.WorkerServer.
func (s *server) Describe(ctx context.Context, _ *workerv1.DescribeRequest) (*workerv1.Description, error) {
	environment := map[string]string{}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		environment[name] = value
	}
	d := &workerv1.Description{
		Pid: uint32(os.Getpid()), LaneVersion: runner.LaneVersion, Python: "3.11.0", Torch: "2.11.0",
		Transformers: "5.17.0", Device: "cpu", MemoryBytes: 1 << 30, Environment: environment,
	}
	if s.worker.Describe != nil {
		if err := s.worker.Describe(ctx, d); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Configure implements workerv1.WorkerServer.
func (s *server) Configure(ctx context.Context, cfg *workerv1.Configuration) (*workerv1.Configured, error) {
	if s.worker.Configure != nil {
		if err := s.worker.Configure(ctx, cfg); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg = cfg
	a := &workerv1.Configured{ParametersDigest: make([]byte, 32), SlotBytes: 1 << 16, ImageBytes: 1 << 16}
	if cfg.GetRole() == workerv1.Role_ROLE_DRAFTER {
		a.Parameters, a.SlotBytes = 1000, 0
	} else {
		a.ImageBytes = 0
	}
	if s.worker.Answer != nil {
		s.worker.Answer(cfg, a)
	}
	return a, nil
}

// WarmUp implements workerv1.WorkerServer.
func (s *server) WarmUp(_ *workerv1.WarmUpRequest, stream grpc.ServerStreamingServer[workerv1.WarmUpReply]) error {
	s.mu.Lock()
	cfg := s.cfg
	s.mu.Unlock()
	if cfg == nil {
		return status.Error(codes.FailedPrecondition, "warm up: not configured")
	}
	send := func(p *workerv1.WarmUpProgress) error {
		return stream.Send(&workerv1.WarmUpReply{Reply: &workerv1.WarmUpReply_Progress{Progress: p}})
	}
	progress := s.worker.Progress
	if progress == nil {
		progress = func(send func(*workerv1.WarmUpProgress) error) error {
			for i, b := range cfg.GetTraining().GetBuckets() {
				total := uint32(len(cfg.GetTraining().GetBuckets()))
				if err := send(&workerv1.WarmUpProgress{Phase: "first_pass", Bucket: b, Done: uint32(i), Total: total}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if err := progress(send); err != nil {
		return err
	}
	c := Certificate(cfg, cfg.GetDevice())
	if s.worker.WarmUp != nil {
		if err := s.worker.WarmUp(stream.Context(), c); err != nil {
			return err
		}
	}
	if s.worker.Lane != nil {
		if err := s.openLane(cfg); err != nil {
			return err
		}
	}
	return stream.Send(&workerv1.WarmUpReply{Reply: &workerv1.WarmUpReply_Certificate{Certificate: c}})
}

// openLane hands fd 4 to the script; the worker ends with it.
func (s *server) openLane(cfg *workerv1.Configuration) error {
	f := os.NewFile(4, "lane")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return status.Errorf(codes.Internal, "open lane: %v", err)
	}
	go func() { // ends the process
		s.worker.Lane(conn.(*net.UnixConn), cfg)
		os.Exit(0)
	}()
	return nil
}
