package worker

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/leash"
)

// nonceName is the variable by which processes that left their group are found.
const nonceName = "DFLASH_NONCE"

// drainLimit bounds how long a process that is not ours may hold our pipes
// open after the child and all its descendants are gone.
const drainLimit = time.Second

// childSpec says how to start a process that is not trusted to behave.
type childSpec struct {
	argv, env []string // env is the whole environment, without the nonce
	dir       string
	nonce     string
	lane      bool   // inherit one end of a socket pair as fd 4
	given     []byte // read from the next fd, to its end; nil: there is none
	stdin     bool   // a pipe; else /dev/null
	lineLimit int
	stdout    func(line []byte, cut bool) // called from one goroutine
	stderr    func(line []byte, cut bool) // called from another
}

// exitStatus is how a child ended.
type exitStatus struct {
	Ended  bool
	At     time.Time
	Code   int // 0 to 255; -1 when a signal ended it
	Signal syscall.Signal
	Peak   uint64 // largest resident size, in bytes
	OOM    string // yes, no or unknown
	Kernel kernelSaid
}

// child is one spawned process with its group. The goroutine that spawns it
// keeps its OS thread until the child is reaped, since the parent-death signal
// follows that thread.
type child struct {
	spec  childSpec
	cmd   *exec.Cmd
	pid   int
	stdin *os.File      // host's end, nil without
	lane  *net.UnixConn // host's end, nil without
	death *os.File      // write end; its closing tells the child that the host is gone
	leash *leash.Leash  // its closing kills the child's group

	exited chan struct{} // closed once the leader is dead, before it is reaped
	done   chan struct{} // closed once reaped, descendants gone, pipes drained

	mu     sync.Mutex // guards below
	reaped bool       // from here on the pid may be somebody else's
	forced bool       // we sent SIGKILL while it was alive
	status exitStatus
	kill   func(pid int, s syscall.Signal) error
}

// startChild spawns the process of spec, tied to this process's life.
func startChild(spec childSpec) (*child, error) {
	c := &child{spec: spec, exited: make(chan struct{}), done: make(chan struct{}), kill: syscall.Kill}
	c.cmd = exec.Command(spec.argv[0], spec.argv[1:]...)
	c.cmd.Dir = spec.dir
	c.cmd.Env = append(append([]string{}, spec.env...), nonceName+"="+spec.nonce)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	plumbing, err := c.plumb()
	if err != nil {
		plumbing.close()
		c.closeEnds()
		return nil, runner.Errorf(runner.Exhausted, "start %s: open pipes: %w", spec.argv[0], err)
	}
	started := make(chan error, 1)
	go c.live(plumbing, started) // ends when the child is reaped and drained; done says so
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// plumbing holds the ends that only the spawn needs, and those that are read.
type plumbing struct {
	theirs []*os.File
	ours   [2]*os.File // stdout, stderr
}

func (p *plumbing) close() {
	closeAll(p.theirs...)
	closeAll(p.ours[:]...)
}

// plumb opens stdin, stdout, stderr, death pipe and lane, and names them in cmd.
func (c *child) plumb() (p *plumbing, err error) {
	p = &plumbing{}
	output := make([]*os.File, 2)
	for i := range output {
		if p.ours[i], output[i], err = pipe(true); err != nil {
			return p, err
		}
		p.theirs = append(p.theirs, output[i])
	}
	c.cmd.Stdout, c.cmd.Stderr = output[0], output[1]
	if c.spec.stdin {
		in, host, err := pipe(false)
		if err != nil {
			return p, err
		}
		p.theirs, c.cmd.Stdin, c.stdin = append(p.theirs, in), in, host
	}
	death, host, err := pipe(true)
	if err != nil {
		return p, err
	}
	c.death = host
	p.theirs, c.cmd.ExtraFiles = append(p.theirs, death), []*os.File{death} // fd 3
	if c.spec.lane {
		host, theirs, err := lanePair()
		if err != nil {
			return p, err
		}
		c.lane, p.theirs = host, append(p.theirs, theirs)
		c.cmd.ExtraFiles = append(c.cmd.ExtraFiles, theirs) // fd 4
	}
	if c.spec.given != nil {
		theirs, err := filled(c.spec.given)
		if err != nil {
			return p, err
		}
		p.theirs, c.cmd.ExtraFiles = append(p.theirs, theirs), append(c.cmd.ExtraFiles, theirs)
	}
	return p, nil
}

// live spawns, ties, waits, sweeps, reaps and drains, all on one OS thread.
func (c *child) live(p *plumbing, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.spawn(); err != nil {
		p.close()
		c.closeEnds()
		started <- err
		return
	}
	closeAll(p.theirs...)
	memory := watchOOM("/", c.pid)
	var pumps sync.WaitGroup
	pumps.Go(func() { readLines(p.ours[0], c.spec.lineLimit, c.spec.stdout) }) // ends with the pipe
	pumps.Go(func() { readLines(p.ours[1], c.spec.lineLimit, c.spec.stderr) })
	started <- nil

	waitExited(c.pid)
	at := time.Now()
	close(c.exited)
	killDescendants(c.pid, nonceName+"="+c.spec.nonce)
	c.reap(at, memory)
	for _, f := range p.ours {
		f.SetReadDeadline(time.Now().Add(drainLimit))
	}
	pumps.Wait()
	closeAll(p.ours[:]...)
	c.death.Close()
	c.leash.Release()
	close(c.done)
}

// spawn starts the command and puts its group on a leash; one without is not let live.
func (c *child) spawn() (err error) {
	if err := c.cmd.Start(); err != nil {
		return runner.Errorf(runner.NotFound, "start %s: %w", c.spec.argv[0], err)
	}
	c.pid = c.cmd.Process.Pid
	if c.leash, err = leash.New(c.pid); err != nil {
		c.kill(-c.pid, syscall.SIGKILL)
		c.cmd.Wait()
		return runner.Errorf(runner.Internal, "start %s: tie its group to this process: %w", c.spec.argv[0], err)
	}
	return nil
}

// waitExited returns when pid, a child of ours, is a zombie: its number and its
// group's stay reserved until it is reaped.
func waitExited(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// reap collects the status; after it no signal is sent any more.
func (c *child) reap(at time.Time, memory oomWatch) {
	c.mu.Lock()
	c.reaped = true
	c.mu.Unlock()
	c.cmd.Wait() // its error only repeats the status
	s := exitStatus{Ended: true, At: at, Code: -1}
	if state := c.cmd.ProcessState; state != nil { // nil: somebody else reaped it
		if ws, ok := state.Sys().(syscall.WaitStatus); ok {
			s.Code = ws.ExitStatus()
			if ws.Signaled() {
				s.Signal = ws.Signal()
			}
		}
		if ru, ok := state.SysUsage().(*syscall.Rusage); ok {
			s.Peak = uint64(ru.Maxrss) << 10
		}
	}
	s.OOM = oomKilled(s.Signal, memory.before, memory.read())
	if s.Kernel = judgeKernel(memory.log.since(), c.pid, sinceBoot()); s.Kernel.OOM {
		s.OOM = yesNo(s.Signal == syscall.SIGKILL)
	}
	c.mu.Lock()
	c.status = s
	c.mu.Unlock()
}

// sinceBoot is the kernel's clock; where it cannot be read one at which nothing is
// near.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 1 << 62
	}
	return time.Duration(ts.Nano())
}

// closeEnds closes the host's ends of a child that never started.
func (c *child) closeEnds() {
	closeAll(c.stdin, c.death)
	if c.lane != nil {
		c.lane.Close()
	}
}

// signal sends s to the child (group false) or its whole group, and says
// whether it was sent: never once the child has been reaped, since the number
// may then be a stranger's.
func (c *child) signal(s syscall.Signal, group bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.send(s, group)
}

// signalIf sends s to the child alone if it holds, asked while the number is
// surely the child's.
func (c *child) signalIf(s syscall.Signal, holds func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.reaped && holds() && c.send(s, false)
}

// send is signal with mu held.
func (c *child) send(s syscall.Signal, group bool) bool {
	if c.reaped {
		return false
	}
	if s == syscall.SIGKILL {
		select {
		case <-c.exited:
		default:
			c.forced = true
		}
	}
	pid := c.pid
	if group {
		pid = -pid
	}
	return c.kill(pid, s) == nil
}

// ended gives the status and whether we had sent SIGKILL. Valid after done.
func (c *child) ended() (s exitStatus, forced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status, c.forced
}
