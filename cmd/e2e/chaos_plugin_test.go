package e2e

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// moody is this binary as a scheduling plugin: late, wrong, silent, or dead at
// questions that the seed chooses, and at a moment of its own. Its good answers
// keep the built-in's order, or are any.
type moody struct {
	scheduler.Base
	seed uint64
	any  bool
}

// becomePlugin serves it: plugin SEED kept|any. It never returns.
func becomePlugin(args []string) {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	m := moody{seed: seed, any: args[1] == "any"}
	if r := m.random("life", uint64(os.Getpid())); r.IntN(3) == 0 {
		time.AfterFunc(time.Duration(r.IntN(5000))*time.Millisecond, func() { os.Exit(7) })
	}
	scheduler.Serve(m)
	os.Exit(0)
}

// random gives numbers that the seed and a question decide.
func (m moody) random(what string, number uint64) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, what, number) // a hash takes everything
	return rand.New(rand.NewPCG(m.seed, h.Sum64()))
}

// Info says who this is.
func (moody) Info() scheduler.Info { return scheduler.Info{Name: "moody", Version: "1.0.0"} }

// Observe listens, and talks.
func (moody) Observe(e scheduler.Event) { fmt.Fprintln(os.Stderr, e.Number, e.Name) }

// Arrange gives an answer, or none.
func (m moody) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	r := m.random("arrange", uint64(q.Epoch)<<32|uint64(q.Left))
	if m.any {
		r.Shuffle(len(q.Pool), func(i, j int) { q.Pool[i], q.Pool[j] = q.Pool[j], q.Pool[i] })
	}
	out := scheduler.First(q)
	switch r.IntN(12) {
	case 0:
		<-ctx.Done()
	case 1:
		select {}
	case 2:
		os.Exit(4)
	case 3:
		return nil, scheduler.Errorf(runner.Exhausted, "no samples for the moment")
	case 4:
		out = out[1:]
	case 5:
		out[0] = out[len(out)-1]
	case 6:
		out[0] = 4_000_000
	case 7:
		_, _ = os.Stderr.Write(bytes.Repeat([]byte("a line that nobody reads\n"), 1<<16))
	}
	return out, nil
}

// plugged draws whether a plugin decides in a history, and configures it; any
// says that it changes the order of samples.
func plugged(t *testing.T, seed uint64) (settings []string, any bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	if r.IntN(2) == 0 {
		return nil, false
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sum, err := host.Sum(self)
	if err != nil {
		t.Fatal(err)
	}
	order := []string{"kept", "any"}[r.IntN(2)]
	return set("scheduler.use=moody", "scheduler.deadline=300ms", "scheduler.backoff_min=50ms", "scheduler.backoff_max=500ms",
		fmt.Sprintf("scheduler.plugins=[{name: moody, path: %q, sha256: %s, args: [plugin, %q, %s], env: [%s]}]", self, sum, fmt.Sprint(seed), order, markName)), order == "any"
}

// signalPlugin signals the plugin's process, where there is one.
func (s *strikes) signalPlugin(sig syscall.Signal) func(admin.Snapshot, admin.WorkerStatus) {
	return func(now admin.Snapshot, _ admin.WorkerStatus) {
		if now.Plugin != nil {
			s.send(now.Plugin.Pid, sig)
		}
	}
}

// countPlugin adds up what a life's plugin came to.
func (s *strikes) countPlugin() {
	if now, ok := s.h.status(s.run); ok && now.Plugin != nil {
		s.c.tally["plugin: starts"] += now.Plugin.Starts
		s.c.tally["plugin: answers"] += int(now.Plugin.Calls)
		s.c.tally["plugin: answers refused"] += int(now.Plugin.Refused)
		s.c.tally["plugin: ends before the run's"] += now.Plugin.Ends
	}
}
