package drivetest

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/hang"
	"github.com/dflash-runner/dflash-runner/runner/lane"
)

// Process is a worker that is a few goroutines. It dies as a process does: at
// once, whatever it does, and its lane with it.
type Process struct {
	Device   string // that it was started on
	life     runner.Life
	launcher *Launcher
	orders   chan ask
	replies  chan reply
	broken   chan error // what Receive gives instead of a reply
	closed   chan struct{}
	gone     chan struct{}
	done     chan struct{}

	mu      sync.Mutex // guards below
	ended   bool
	failure *runner.Failure
	frozen  time.Time
	beats   bool          // although frozen
	spins   bool          // likewise
	thaw    chan struct{} // closed when it goes on
	kills   int
	flood   bool
	warming bool // counted by the launcher
	reaped  bool
}

type reply struct {
	seq  uint64
	r    runner.Reply
	file *os.File
}

var _ drive.Process = (*Process)(nil)

// Life gives which life it is.
func (p *Process) Life() runner.Life { return p.life }

// Facts are the model's.
func (p *Process) Facts() drive.Facts {
	f := drive.Facts{Pid: 1000 + int(p.life.Generation)}
	if p.life.Worker.Role == runner.Target {
		f.SlotBytes = SlotBytes
	} else {
		f.ImageBytes, f.Parameters = ImageBytes, Start()
	}
	return f
}

// Send hands an order over with a descriptor of its own, as a socket does.
func (p *Process) Send(seq uint64, o runner.Order, f *os.File) error {
	if lane.NeedsFD(o) != (f != nil) {
		return runner.Errorf(runner.Internal, "send %s: descriptor: want %t, got %t", runner.OrderType(o), lane.NeedsFD(o), f != nil)
	}
	a := ask{seq: seq, order: o}
	if f != nil {
		var err error
		if a.file, err = duplicate(f); err != nil {
			return err
		}
	}
	select {
	case <-p.gone:
		closeFile(a)
		return runner.Errorf(runner.Unavailable, "send %s: the lane is closed", runner.OrderType(o))
	default:
	}
	select {
	case p.orders <- a:
		return nil
	default:
		closeFile(a)
		return runner.Errorf(runner.Exhausted, "send %s: the lane is full", runner.OrderType(o))
	}
}

// duplicate gives a descriptor of its own for what f names, as a socket does.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "sent"), nil
}

// Receive gives replies, also those from before a death.
func (p *Process) Receive() (uint64, runner.Reply, *os.File, error) {
	if p.flooding() {
		p.pass(p.launcher.Ladder / 100) // a bubble's time stands while anybody runs
		select {
		case <-p.gone:
			return 0, nil, nil, io.EOF
		default:
			return 1 << 40, runner.Pulled{Row: 1}, nil, nil
		}
	}
	select {
	case r := <-p.replies:
		return r.seq, r.r, r.file, nil
	case err := <-p.broken:
		return 0, nil, nil, err
	case <-p.gone:
	}
	select {
	case r := <-p.replies:
		return r.seq, r.r, r.file, nil
	default:
	}
	if p.launcher.Linger {
		<-p.closed
	}
	return 0, nil, nil, io.EOF
}

// BreakLane has the loop find a frame that breaks the rules.
func (p *Process) BreakLane() { p.breakLane(runner.Errorf(runner.Invalid, "decode reply: garbage")) }

// DropLane closes its end of the lane, and it lives on.
func (p *Process) DropLane() { p.breakLane(io.EOF) }

// breakLane does nothing where the lane is broken already.
func (p *Process) breakLane(err error) {
	select {
	case p.broken <- err:
	default:
	}
}

// Say has it answer an order that it may not have been given.
func (p *Process) Say(seq uint64, r runner.Reply) {
	select {
	case p.replies <- reply{seq: seq, r: r}:
	case <-p.gone:
	default: // nobody reads: it is full
	}
}

// Flood has it answer an order that it was not given, without end.
func (p *Process) Flood() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flood = true
}

func (p *Process) flooding() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flood
}

// CloseLane ends a lane that lingers; another one ends with the process.
func (p *Process) CloseLane() { close(p.closed) }

// Freeze stops it, as SIGSTOP does: no sign of life, no answers.
func (p *Process) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen.IsZero() {
		p.frozen, p.thaw = time.Now(), make(chan struct{})
	}
}

// Thaw has it go on, as SIGCONT does.
func (p *Process) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.frozen.IsZero() {
		p.frozen = time.Time{}
		close(p.thaw)
	}
}

// still waits while it is frozen; false when it ended meanwhile.
func (p *Process) still() bool {
	for {
		p.mu.Lock()
		frozen, thaw := !p.frozen.IsZero(), p.thaw
		p.mu.Unlock()
		if !frozen {
			return true
		}
		select {
		case <-thaw:
		case <-p.gone:
			return false
		}
	}
}

// Deadlock has it answer nothing from here on, and compute nothing, alive.
func (p *Process) Deadlock() { p.lock(false) }

// Spin has it answer nothing from here on, and compute all the time.
func (p *Process) Spin() { p.lock(true) }

func (p *Process) lock(spins bool) {
	p.Freeze()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats, p.spins = true, spins
}

// Vitals are those of a process that computes all the time, until it is frozen.
func (p *Process) Vitals(bool) hang.Vitals {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen.IsZero() {
		return hang.Vitals{}
	}
	if p.beats {
		v := hang.Vitals{Counted: true}
		if p.spins {
			v.CPU = time.Since(p.frozen)
		}
		return v
	}
	return hang.Vitals{Heartbeat: time.Since(p.frozen), State: hang.Stopped}
}

// Kill ends it.
func (p *Process) Kill(k core.Kill) {
	p.mu.Lock()
	p.kills++
	p.mu.Unlock()
	p.pass(p.launcher.Ladder)
	p.end(&runner.Failure{Worker: p.life.Worker, Generation: p.life.Generation, Role: p.life.Worker.Role, Cause: k.Cause,
		Message: k.Message, Hint: k.Hint, Traceback: k.Traceback, Signal: "SIGKILL", ForcedBySelf: true})
}

// Die ends it from outside.
func (p *Process) Die() {
	p.end(&runner.Failure{Worker: p.life.Worker, Generation: p.life.Generation, Role: p.life.Worker.Role,
		Cause: runner.CauseSignal, Message: "killed by SIGKILL", Signal: "SIGKILL"})
}

func (p *Process) end(f *runner.Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended, p.failure = true, f
		close(p.gone)
	}
}

// Gone is closed when it dies, which is before it is reaped.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Done is closed once its goroutines have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Report tells how it ended.
func (p *Process) Report() *runner.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// Kills says how often it was killed.
func (p *Process) Kills() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kills
}

// ReceiveOrder is the worker's end.
func (p *Process) ReceiveOrder() (uint64, runner.Order, *os.File, error) {
	select {
	case a := <-p.orders:
		if !p.still() {
			closeFile(a)
			return 0, nil, nil, io.EOF
		}
		return a.seq, a.order, a.file, nil
	case <-p.gone:
		return 0, nil, nil, io.EOF
	}
}

// SendReply is the worker's end.
func (p *Process) SendReply(seq uint64, r runner.Reply, f *os.File) error {
	if lane.ReplyNeedsFD(r) != (f != nil) {
		return runner.Errorf(runner.Internal, "send %s: descriptor: want %t, got %t", runner.ReplyType(r), lane.ReplyNeedsFD(r), f != nil)
	}
	select {
	case <-p.gone:
		return io.ErrClosedPipe
	default:
	}
	if !p.still() {
		return io.ErrClosedPipe
	}
	own := reply{seq: seq, r: r}
	if f != nil {
		var err error
		if own.file, err = duplicate(f); err != nil {
			return err
		}
	}
	select {
	case p.replies <- own:
		return nil
	case <-p.gone:
		closeFile(ask{file: own.file})
		return io.ErrClosedPipe
	}
}

// run is the process: it ends when the model or the process does.
func (p *Process) run(w *Worker) {
	defer close(p.done)
	switch err := w.Serve(p); err {
	case nil:
		p.end(nil)
	default:
		p.Die()
	}
	time.Sleep(p.launcher.Reap)
	for len(p.orders) > 0 {
		closeFile(<-p.orders)
	}
	p.reap()
}

// pass lets some time of its life pass.
func (p *Process) pass(d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-p.gone:
	}
}
