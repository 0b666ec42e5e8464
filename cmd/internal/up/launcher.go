package up

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/hang"
	"github.com/dflash-runner/dflash-runner/runner/lane"
)

// launcher starts Python workers for the loop.
type launcher struct {
	u        *up
	settings *settings
	data     dataset
	nonce    string
	runtime  string // 0700 directory for sockets, of this process alone

	mu    sync.Mutex // guards below
	lives map[runner.Worker]*process
	ended map[runner.Worker]ended // launches that failed, newest of each
}

// Launch starts one life. See drive.Launcher.
func (l *launcher) Launch(ctx context.Context, life runner.Life, device string) (drive.Process, error) {
	c := l.u.config
	l.u.starts(life.Worker, device)
	if err := l.awaitRelease(ctx, life); err != nil {
		return nil, err
	}
	p, err := worker.Launch(ctx, worker.Spec{
		Life: life, Argv: []string{l.u.python.interpreter, "-m", "dflash_runner.serve"},
		Env: l.environment(device, life), Dir: l.u.dir.path, Configuration: l.settings.configuration(life, l.u.dir, l.data, told(device)),
		LogPath: l.u.dir.join("logs", logName(life)), RuntimeDir: l.runtime, Device: device,
		StartTimeout: c.Failure.Deadlines.Launch.D(), DescribeTimeout: c.Failure.Deadlines.Launch.D(),
		ConfigureTimeout: c.Failure.Deadlines.Configure.D(), Grace: c.Failure.Deadlines.Drain.D(),
		Logger: l.u.log.Named(life.Worker.String()), Nonce: l.nonce,
	})
	if err != nil {
		var died *worker.LaunchError
		if errors.As(err, &died) {
			l.mu.Lock()
			l.ended[life.Worker] = ended{at: died.Failure.At}
			l.mu.Unlock()
			return nil, &drive.Died{Failure: died.Failure, Err: err}
		}
		return nil, err
	}
	out := &process{p: p, lane: lane.New(p.Lane()), life: life, u: l.u, configuration: l.settings.configuration(life, l.u.dir, l.data, told(device))}
	l.mu.Lock()
	l.lives[life.Worker] = out
	l.mu.Unlock()
	return out, nil
}

// environment is what the supervisor sets; the host's part is added at launch.
func (l *launcher) environment(device string, life runner.Life) []string {
	set := l.u.python.environment(l.u.config.Workers.Threads)
	set = append(set, seeing(device)...)
	set = append(set, l.u.compiling()...)
	if fault := os.Getenv(faultVariable); fault != "" {
		set = append(set, faultVariable+"="+fault)
	}
	return append(set, "DFLASH_RUNNER_LIFE="+life.String())
}

func logName(life runner.Life) string {
	return life.Worker.FileName() + "." + itoa(int(life.Generation)) + ".log"
}

// process is one Python worker as the loop sees it.
type process struct {
	p             *worker.Process
	lane          *lane.Conn
	life          runner.Life
	u             *up
	configuration *workerv1.Configuration
}

var _ drive.Process = (*process)(nil)

func (p *process) Facts() drive.Facts {
	c := p.p.Configured()
	f := drive.Facts{Pid: p.p.Pid(), SlotBytes: c.SlotBytes, ImageBytes: c.ImageBytes}
	copy(f.Parameters[:], c.ParametersDigest)
	return f
}

func (p *process) WarmUp(ctx context.Context, progress func(string, uint32, uint32)) (runner.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, p.u.config.WarmUp.Deadline.D())
	defer cancel()
	certified := false
	p.u.enterKernels()
	defer func() { p.u.leaveKernels(certified) }()
	full, err := p.p.WarmUp(ctx, func(w *workerv1.WarmUpProgress) { progress(w.Phase, w.Done, w.Total) })
	if err != nil {
		return runner.Certificate{}, err
	}
	name := p.u.dir.join("certificates", strings.TrimSuffix(logName(p.life), ".log")+".json")
	b, err := protojson.Marshal(full)
	if err == nil {
		err = renameio.WriteFile(name, b, 0o600)
	}
	if err != nil { // the certificate holds all the same; its file is for people
		p.u.warn("certificates", err.Error())
	}
	c, err := worker.Check(full, p.configuration, p.configuration.Device)
	certified = err == nil
	return c, err
}

func (p *process) Send(seq uint64, o runner.Order, f *os.File) error {
	p.p.SetLastOrder(runner.OrderType(o))
	if _, ok := o.(runner.Drain); ok {
		p.p.ExpectExit()
	}
	return p.lane.Send(seq, o, f)
}

func (p *process) Receive() (uint64, runner.Reply, *os.File, error) {
	seq, r, f, err := p.lane.Receive()
	if err != nil {
		_ = p.lane.Close() // of no more use, whatever the error was
	}
	return seq, r, f, err
}

func (p *process) Vitals(deep bool) hang.Vitals { return p.p.Vitals(deep) }
func (p *process) CloseLane()                   { _ = p.lane.Close() } // a second close is no harm
func (p *process) Done() <-chan struct{}        { return p.p.Done() }

// Kill ends the worker. One that was too late has its stacks asked for first.
func (p *process) Kill(k core.Kill) {
	if k.Cause == runner.CauseDeadline {
		p.p.DumpAndKill(k.Message, k.Hint)
		return
	}
	p.p.KillFor(k.Cause, k.Message, k.Hint, k.Traceback)
}

func (p *process) Report() *runner.Failure {
	r := p.p.Report()
	if r.Cause == "" {
		return nil
	}
	return &r
}
