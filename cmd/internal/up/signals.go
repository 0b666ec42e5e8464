package up

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// watchSignals ends the run on SIGINT or SIGTERM: gracefully at the first,
// quickly at the second. A terminal that hangs up ends it gracefully, however
// often it says so, where the run has one and nohup does not forbid it. SIGUSR1
// asks for a checkpoint, and the run goes on. It ends with ctx; the returned
// function waits for it.
func (u *up) watchSignals(ctx context.Context) (wait func()) {
	got := make(chan os.Signal, 4)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	if u.options.Detached {
		signal.Ignore(syscall.SIGHUP)
	} else if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(got, syscall.SIGHUP)
	}
	save := make(chan os.Signal, 1)
	signal.Notify(save, syscall.SIGUSR1)
	done := make(chan struct{})
	go func() { // stops with ctx; waited for by wait
		defer close(done)
		defer signal.Stop(got)
		defer signal.Stop(save)
		for n := 0; ; {
			select {
			case s := <-got:
				hangup := s == syscall.SIGHUP // comes from the kernel and from the shell
				u.stop(n > 0 && !hangup, "signal "+s.String())
				n++
			case <-save:
				u.checkpoint()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { <-done }
}

// checkpoint asks for a checkpoint on behalf of a signal, whose sender hears no
// answer: people are told.
func (u *up) checkpoint() {
	if err := u.Checkpoint(); err != nil {
		u.observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "checkpoint not made", Message: "signal user defined signal 1: " + err.Error()})
		return
	}
	u.note("checkpoint requested", "signal user defined signal 1: the next decided step is saved")
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
