// Package worker is the host side of a worker: it starts one Python process
// under go-plugin, takes it through handshake, Describe, Configure and WarmUp,
// and tells how it ended. Whatever a worker prints, sends or withholds, every
// wait here has a bound and every death one report.
package worker

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	plugin "github.com/hashicorp/go-plugin"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// pluginKillWait bounds go-plugin's own Kill, which only tidies up here: the
// process is gone before it is called.
const pluginKillWait = 3 * time.Second

// Process is one life of a worker. Its methods may be called from any goroutine.
type Process struct {
	spec   Spec
	log    *lifeLog
	client *plugin.Client
	runner *hostRunner // nil until go-plugin asked for it

	// Set while launching, by the launching goroutine alone.
	control     workerv1.WorkerClient
	connected   bool // go-plugin holds a connection to close
	description *workerv1.Description
	configured  *workerv1.Configured

	launched  chan struct{} // closed when the launch has ended, well or not
	done      chan struct{}
	laneTaken atomic.Bool

	mu        sync.Mutex // guards below
	child     *child     // nil until spawned, then fixed
	pinger    *pinger    // nil until the socket was reached, then fixed
	phase     string
	lastOrder string
	asked     bool
	verdict   *verdict
	said      []string // what the worker itself told of its error, on the lane
	startErr  error
	lastSign  time.Duration
	final     runner.Failure
}

// Pid gives the worker's process number. After Done it may be a stranger's.
func (p *Process) Pid() int { return p.live().pid }

// live gives the child, which every Process that Launch returned has.
func (p *Process) live() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

// signs gives the pinger, nil before the socket was reached.
func (p *Process) signs() *pinger {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pinger
}

// Description gives what the worker said about itself.
func (p *Process) Description() *workerv1.Description { return p.description }

// Configured gives the worker's answer to its configuration.
func (p *Process) Configured() *workerv1.Configured { return p.configured }

// Lane gives the host's end of the lane. Who takes it closes it.
func (p *Process) Lane() *net.UnixConn {
	p.laneTaken.Store(true)
	return p.live().lane
}

// Done is closed once the worker is reaped, its descendants are gone, its
// pipes drained and its sockets removed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Report tells how the worker ended. Valid after Done; the cause is "" when it
// ended with code 0 and had been asked to.
func (p *Process) Report() runner.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.final
}

// SignAge gives the time since the worker last gave a sign of life, or since
// it was first asked for one. It needs nothing of Python.
func (p *Process) SignAge() time.Duration {
	age, _ := p.signs().age(time.Now())
	return age
}

// SetLastOrder notes what was last asked of the worker, for the report.
func (p *Process) SetLastOrder(order string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastOrder = order
}

// ExpectExit says that the worker was asked to end (drain, on the lane): an end
// with code 0 is then no failure.
func (p *Process) ExpectExit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
}

// Kill ends the worker's process group at once, for the given reason. The first
// reason counts, and only if the worker had not ended by itself. It does not
// wait; Done does.
func (p *Process) Kill(cause runner.Cause, message, hint string) {
	p.condemn(verdict{cause, message, hint})
	if c := p.live(); c != nil {
		c.signal(syscall.SIGKILL, true)
	}
}

// KillFor is Kill with the traceback that the worker gave of its error on the
// lane: where that is why it ends, the report carries it.
func (p *Process) KillFor(cause runner.Cause, message, hint string, traceback []string) {
	p.mu.Lock()
	if p.verdict == nil {
		p.said = traceback
	}
	p.mu.Unlock()
	p.Kill(cause, message, hint)
}

// tell adds the stacks that somebody else read to the report.
func (p *Process) tell(said []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = said
}

// DumpAndKill is Kill with cause deadline, after the worker wrote the stacks of
// its threads or had a moment to: it waits that long.
func (p *Process) DumpAndKill(message, hint string) { p.dumpAndKill(message, hint) }

// Dump asks the worker for the stacks of its threads, which come on stderr. It
// says whether it asked: a process without a handler for it would die of it.
func (p *Process) Dump() bool {
	c := p.live()
	return c != nil && c.signalIf(syscall.SIGUSR2, func() bool { return catches(c.pid, syscall.SIGUSR2) })
}

// amend gives the verdict another hint, where it is still that one.
func (p *Process) amend(was verdict, hint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verdict != nil && *p.verdict == was {
		p.verdict = &verdict{was.Cause, was.Message, hint}
	}
}

// condemn records why the worker is ended, unless that is known already.
func (p *Process) condemn(v verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verdict == nil {
		p.verdict = &v
	}
}

func (p *Process) setPhase(phase string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = phase
}

func (p *Process) nowDoing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase
}

// watch waits for the child's end and closes the life: it is the goroutine that
// closes done.
func (p *Process) watch(c *child) {
	<-c.exited
	p.noteSign(time.Now())
	<-c.done
	<-p.launched // until then the launch may still be opening what is closed here
	p.close()
}

// noteSign keeps the age of the last sign of life at the time of death.
func (p *Process) noteSign(now time.Time) {
	sign := time.Duration(-1)
	if pinger := p.signs(); pinger != nil {
		if age, ok := pinger.age(now); ok {
			sign = age
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastSign = sign
}

// close ends the books of a life whose process is gone, or never was.
func (p *Process) close() {
	if pinger := p.signs(); pinger != nil {
		pinger.close()
	}
	p.closeClient()
	p.log.close()
	c := p.live()
	if c != nil && !p.laneTaken.Load() {
		c.lane.Close()
	}
	e := p.evidence(c)
	p.mu.Lock()
	p.final = report(e)
	p.mu.Unlock()
	close(p.done)
}

// closeClient lets go-plugin close what it holds, in a bound, and removes the
// socket directory, which go-plugin leaves behind on several paths.
func (p *Process) closeClient() {
	if p.connected {
		gone := make(chan struct{})
		go func() { // ends when go-plugin's Kill does; waited for below, in a bound
			defer close(gone)
			p.client.Kill()
		}()
		late := time.NewTimer(pluginKillWait)
		defer late.Stop()
		select {
		case <-gone:
		case <-late.C:
			p.spec.Logger.Warn("go-plugin's kill is stuck after the worker's end", "limit_s", pluginKillWait.Seconds())
		}
	}
	if p.runner == nil {
		return
	}
	if err := os.RemoveAll(p.runner.socketDir); err != nil {
		p.spec.Logger.Warn("socket directory left behind", "path", p.runner.socketDir, "err", err.Error())
	}
}

// evidence gathers what is known of the death.
func (p *Process) evidence(c *child) evidence {
	e := evidence{Life: p.spec.Life, Device: p.spec.Device}
	e.Tail, e.Noise, e.Trace = p.log.kept()
	if c != nil {
		e.Status, e.Forced = c.ended()
	}
	if e.Status.At.IsZero() {
		e.Status.At = time.Now()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e.Phase, e.LastOrder, e.LastSign = p.phase, p.lastOrder, p.lastSign
	e.Asked, e.Verdict, e.StartErr, e.Said = p.asked, p.verdict, p.startErr, p.said
	return e
}
