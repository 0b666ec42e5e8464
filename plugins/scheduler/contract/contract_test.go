package contract

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
)

// TestMain turns this binary into a plugin, or the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "plugin" {
		scheduler.Serve(plugged{which: os.Args[2]})
		if os.Args[2] == "lingers" {
			time.Sleep(time.Hour) // the host kills it
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// plugged keeps the contract, but for what its name says.
type plugged struct {
	scheduler.Base
	which string
}

func (plugged) Info() scheduler.Info { return scheduler.Info{Name: "plugged", Version: "1"} }

func (p plugged) Schema() []scheduler.Field {
	if p.which == "silent" {
		return []scheduler.Field{{Key: "depth", Type: scheduler.Int}}
	}
	return nil
}

func (p plugged) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	out := scheduler.First(q)
	switch {
	case p.which == "dies" && len(q.Pool) > 10_000:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		<-ctx.Done()
	case p.which == "once": // takes a sample to be drawn once
		seen := map[runner.Sample]bool{}
		for i, s := range out {
			if seen[s] {
				out[i] = 1
			}
			seen[s] = true
		}
	case p.which == "short" && q.Left < q.Total: // forgets the end of an epoch
		out = out[:len(out)-1]
	case p.which == "slow" && len(q.Pool) > 10_000:
		<-ctx.Done()
		return nil, ctx.Err() // a right answer could be in time on one of both sides
	case p.which == "leaks": // with one kind of two
		go func() { select {} }()
	}
	return out, nil
}

func (plugged) Assign(_ context.Context, q scheduler.AssignRequest) (runner.Worker, error) {
	return q.Free[0], nil
}

// leakFound is what is said of a goroutine a call.
var leakFound = regexp.MustCompile(`^want as much after many calls as before, got goroutines: \d+ before \d{2,3} calls, \d{2,} after$`)

func TestCheck(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for which, fails := range map[string]string{"good": "", "once": "arrange repeated draws", "short": "arrange whole epochs", "slow": "arrange a large pool", "dies": "arrange a large pool",
		"leaks": "leaves nothing behind", "silent": "documents its configuration", "lingers": "ends when asked"} {
		t.Run(which, func(t *testing.T) {
			e, err := host.Pin(self, "plugin", which)
			if err != nil {
				t.Fatal(err)
			}
			o := host.Defaults()
			if o.Directory, err = os.MkdirTemp("", "s"); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(o.Directory)
			all := Check(t.Context(), e, o)
			var failed []string
			for _, r := range all {
				if r.Status == Failed {
					failed = append(failed, r.Name)
				}
			}
			if which == "dies" { // it is told how, and asked no more
				for i, r := range all {
					if r.Name == "arrange a large pool" && !strings.Contains(r.Detail, "it ended unasked, by SIGKILL") || i > 4 && r.Status == OK {
						t.Errorf("got %+v", r)
					}
				}
			}
			if r := all[13]; which == "leaks" && !leakFound.MatchString(r.Detail) {
				t.Errorf("got %+v", r)
			}
			if got := strings.Join(failed, ", "); got != fails || Passed(all) != (fails == "") || len(all) != 15 {
				t.Errorf("failed %q, want %q: %+v", got, fails, all)
			}
		})
	}
}

// TestLeavesOfFewCalls: a plugin that is too slow for hundreds of questions is
// judged by those that it had the time for, and by none where these tell nothing.
func TestLeavesOfFewCalls(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		which string
		calls int
		want  Result
	}{
		{"leaks", 12, Result{Status: Failed, Detail: `^want as much after many calls as before, got goroutines: \d+ before 12 calls, \d+ after$`}},
		{"good", 12, Result{Status: OK, Detail: `^\d+ MiB, .* goroutines; it is slow: with 12 calls, less than 6 MiB a call is not seen$`}},
		{"leaks", 7, Result{Status: Skipped, Detail: `^it is too slow to tell: 7 calls took 10s, want 8 or more$`}},
	} {
		t.Run(fmt.Sprint(c.which, c.calls), func(t *testing.T) {
			e, err := host.Pin(self, "plugin", c.which)
			if err != nil {
				t.Fatal(err)
			}
			o := host.Defaults()
			if o.Directory, err = os.MkdirTemp("", "s"); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(o.Directory)
			o.Look = 0
			k := &kit{leakCalls: c.calls}
			if k.plugin, err = host.Start(t.Context(), e, o); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = k.plugin.Close() }()
			k.ask(t.Context(), "leaves", k.leaves)
			if r := k.results[0]; r.Status != c.want.Status || !regexp.MustCompile(c.want.Detail).MatchString(r.Detail) {
				t.Errorf("want %+v, got %+v", c.want, r)
			}
		})
	}
}
