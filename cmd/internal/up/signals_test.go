package up

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// signalled watches signals with an up whose stops are told on a channel.
func signalled(t *testing.T, detached bool) (u *up, stops chan struct{}) {
	stops = make(chan struct{}, 8)
	u = &up{options: Options{Detached: detached}, state: admin.Training, cancel: func() { stops <- struct{}{} }}
	ctx, cancel := context.WithCancel(context.Background())
	wait := u.watchSignals(ctx)
	t.Cleanup(func() {
		cancel()
		wait()
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGHUP) // which Reset does not: it takes an Ignore back
		signal.Stop(c)
	})
	return u, stops
}

func send(t *testing.T, s syscall.Signal, stops chan struct{}) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stops:
	case <-time.After(10 * time.Second):
		t.Fatalf("%v asked for no stop", s)
	}
}

// asked says why the run was asked to end, and whether quickly.
func asked(u *up) (why string, quick bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.stopping, u.quick
}

// TestHangUp: a terminal that hangs up ends the run gracefully, twice as well; a
// second signal of another kind ends it quickly.
func TestHangUp(t *testing.T) {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP) // these tests may themselves run under nohup
	signal.Stop(heard)
	u, stops := signalled(t, false)
	for range 2 {
		send(t, syscall.SIGHUP, stops)
		if why, quick := asked(u); why != "signal hangup" || quick {
			t.Fatalf("stopped by %q, quickly %v", why, quick)
		}
	}
	send(t, syscall.SIGTERM, stops)
	if _, quick := asked(u); !quick {
		t.Error("a second signal did not end the run quickly")
	}
}

// TestHangUpIgnored: nohup and --detach keep a run from ending with its terminal.
func TestHangUpIgnored(t *testing.T) {
	for name, detached := range map[string]bool{"nohup": false, "detached": true} {
		t.Run(name, func(t *testing.T) {
			if !detached {
				signal.Ignore(syscall.SIGHUP)
			}
			u, stops := signalled(t, detached)
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			send(t, syscall.SIGTERM, stops)
			if why, quick := asked(u); why != "signal terminated" || quick {
				t.Errorf("stopped by %q, quickly %v", why, quick)
			}
		})
	}
}
