package up

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// watchSignals ends the run on SIGINT or SIGTERM: gracefully at the first,
// quickly at the second. A terminal that hangs up ends it gracefully, however
// often it says so, where the run has one and nohup does not forbid it. It ends
// with ctx; the returned function waits for it.
func (u *up) watchSignals(ctx context.Context) (wait func()) {
	got := make(chan os.Signal, 4)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	if u.options.Detached {
		signal.Ignore(syscall.SIGHUP)
	} else if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(got, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() { // stops with ctx; waited for by wait
		defer close(done)
		defer signal.Stop(got)
		for n := 0; ; n++ {
			select {
			case s := <-got:
				hangup := s == syscall.SIGHUP // comes from the kernel and from the shell
				u.stop(n > 0 && !hangup, "signal "+s.String())
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { <-done }
}

// stop asks the run to end, at whatever stage it is. Before training there is
// nothing to save, and after it all is saved, so the running job is ended.
func (u *up) stop(quick bool, reason string) {
	u.mu.Lock()
	if u.stopping == "" {
		u.stopping = reason
	}
	u.quick = u.quick || quick
	if !u.state.Over() {
		u.state = "stopping"
	}
	loop := u.loop
	if u.ended != nil {
		loop = nil
	}
	u.mu.Unlock()
	if loop != nil {
		loop.Stop(quick, reason)
	}
	if loop == nil || quick {
		u.cancel()
	}
}

// stoppedBy gives the first reason why the run was asked to end, or nothing.
func (u *up) stoppedBy() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.stopping
}
