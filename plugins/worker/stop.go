package worker

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Stop ends the worker: SIGTERM to its group, SIGKILL after the grace or as
// soon as ctx is done, then what is left to close. It returns an error only if
// the process survives that. To drain first is the caller's part.
func (p *Process) Stop(ctx context.Context) error {
	p.ExpectExit()
	c := p.live()
	c.signal(syscall.SIGTERM, true)
	c.signal(syscall.SIGCONT, true) // a stopped process must be able to act on it
	grace := time.NewTimer(p.spec.Grace)
	defer grace.Stop()
	select {
	case <-c.exited:
	case <-ctx.Done():
		p.Kill(runner.CauseKilled, "did not end in the time that the supervisor had", "")
	case <-grace.C:
		p.Kill(runner.CauseKilled, fmt.Sprintf("did not end within %s of SIGTERM", p.spec.Grace), "")
	}
	late := time.NewTimer(killWait + pluginKillWait)
	defer late.Stop()
	select {
	case <-p.done:
		return nil
	case <-late.C:
		return runner.Errorf(runner.Unavailable, "stop %s: pid %d survives SIGKILL (uninterruptible sleep?)", p.spec.Life, c.pid)
	}
}
