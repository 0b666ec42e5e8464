package e2e

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// moody is this binary as a scheduling plugin: late, wrong, silent, or dead at
// questions that the seed chooses, and at a moment of its own. Its good answers
// keep the built-in's order, or are any. Each answer is a line of its log.
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
	if r := m.random("life", os.Getpid()); r.IntN(3) == 0 {
		time.AfterFunc(time.Duration(r.IntN(5000))*time.Millisecond, func() { os.Exit(7) })
	}
	scheduler.Serve(m)
	os.Exit(0)
}

// random gives numbers that the seed and a question decide.
func (m moody) random(what string, number ...any) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, what, number) // a hash takes everything
	return rand.New(rand.NewPCG(m.seed, h.Sum64()))
}

// The moods, besides a question's own wrong answers. Most answers are good.
var moods = []string{"good", "good", "good", "good", "good", "late", "silent", "dead", "error", "loud", "wrong", "wrong", "wrong"}

// mood draws how a question is answered, and does what is no answer.
func (m moody) mood(ctx context.Context, r *rand.Rand, what string) (wrong bool, err error) {
	mood := moods[r.IntN(len(moods))]
	_, _ = unix.Write(2, fmt.Appendf(nil, "%s%s: %s\n", answers, what, mood)) // not os.Stderr, of which a death leaves nothing
	switch mood {
	case "late":
		<-ctx.Done()
	case "silent":
		select {}
	case "dead":
		os.Exit(4)
	case "error":
		return false, scheduler.Errorf(runner.Exhausted, "not for the moment")
	case "loud":
		_, _ = os.Stderr.Write(bytes.Repeat([]byte("a line that nobody reads\n"), 1<<16))
	}
	return mood == "wrong", nil
}

// answers is how the lines of its log begin that are counted.
const answers = "plugin answers "

// Info says who this is.
func (moody) Info() scheduler.Info { return scheduler.Info{Name: "moody", Version: "1.0.0"} }

// Observe listens, and talks.
func (moody) Observe(e scheduler.Event) { fmt.Fprintln(os.Stderr, e.Number, e.Name) }

// Arrange gives an answer, or none.
func (m moody) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	r := m.random("arrange", q.Epoch, q.Left)
	if m.any {
		r.Shuffle(len(q.Pool), func(i, j int) { q.Pool[i], q.Pool[j] = q.Pool[j], q.Pool[i] })
	}
	out := scheduler.First(q)
	wrong, err := m.mood(ctx, r, "arrange")
	if wrong {
		switch r.IntN(3) {
		case 0:
			out = out[1:]
		case 1:
			out[0] = out[len(out)-1] // twice, unless it is the only one
		case 2:
			out[0] = 4_000_000
		}
	}
	return out, err
}

// Assign takes any target that is free, or another.
func (m moody) Assign(ctx context.Context, q scheduler.AssignRequest) (runner.Worker, error) {
	r := m.random("assign", q.Row, len(q.Free))
	w := q.Free[r.IntN(len(q.Free))]
	wrong, err := m.mood(ctx, r, "assign")
	if wrong {
		w = []runner.Worker{{Role: runner.Target, Rank: 99}, {Role: runner.Drafter}, {}}[r.IntN(3)]
	}
	return w, err
}

// Place has all on the one device that there is, or none, or elsewhere.
func (m moody) Place(ctx context.Context, q scheduler.PlaceRequest) (out []scheduler.Placement, err error) {
	r := m.random("place", os.Getpid())
	for _, n := range q.Needs {
		out = append(out, scheduler.Placement{Worker: n.Worker, Device: q.Devices[0].ID})
	}
	wrong, err := m.mood(ctx, r, "place")
	if wrong {
		switch r.IntN(3) {
		case 0:
			out[0].Device = "GPU-moon"
		case 1:
			out[0] = out[len(out)-1]
		case 2:
			out = nil
		}
	}
	return out, err
}

// OnFailure has a worker started again, or says what cannot be.
func (m moody) OnFailure(ctx context.Context, q scheduler.FailureRequest) (scheduler.Verdict, error) {
	r := m.random("on_failure", q.Worker, os.Getpid(), q.Deaths)
	v := scheduler.Verdict{Decision: scheduler.Restart, Reason: "it may"}
	wrong, err := m.mood(ctx, r, "on_failure")
	if wrong {
		v = []scheduler.Verdict{{Decision: "bury"}, {Decision: scheduler.Replace, Device: q.Device}, {Decision: scheduler.Replace, Device: "GPU-moon"},
			{Decision: scheduler.Stop, Reason: "two\nlines"}, {}}[r.IntN(5)]
	}
	return v, err
}

// decides says whether a plugin decides in a seed's history.
func decides(seed uint64) bool { return rand.New(rand.NewPCG(seed, 1)).IntN(2) == 1 }

// plug configures the plugin of a history that has one, now and then with more
// than one target to choose from.
func (s *strikes) plug(seed uint64) {
	s.t.Helper()
	if !decides(seed) {
		return
	}
	r := rand.New(rand.NewPCG(seed, 2))
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	sum, err := host.Sum(self)
	if err != nil {
		s.t.Fatal(err)
	}
	order := []string{"kept", "any"}[r.IntN(2)]
	s.any = order == "any"
	s.targets = max(s.targets, 1+r.IntN(2))
	s.plugin = set(fmt.Sprintf("workers.targets=%d", s.targets), "scheduler.use=moody", "scheduler.deadline=500ms", "scheduler.backoff_min=50ms", "scheduler.backoff_max=500ms",
		fmt.Sprintf("scheduler.plugins=[{name: moody, path: %q, sha256: %s, args: [plugin, %q, %s], env: [%s]}]", self, sum, fmt.Sprint(seed), order, markName))
	s.note("%d targets, a plugin, order %s", s.targets, order)
}

// signalPlugin signals the plugin's process, where there is one.
func (s *strikes) signalPlugin(sig syscall.Signal) func(admin.Snapshot, admin.WorkerStatus) {
	return func(now admin.Snapshot, _ admin.WorkerStatus) {
		if now.Plugin != nil {
			s.send(now.Plugin.Pid, sig)
		}
	}
}

// countPlugin adds up what the history's plugins did, by their logs, and what
// the last life's came to.
func (s *strikes) countPlugin() {
	logs, err := filepath.Glob(s.h.path(s.run, "logs", "scheduler-*.log"))
	if err != nil || s.plugin != nil && len(logs) == 0 {
		s.t.Errorf("want the plugin's logs, got %v, %v", logs, err)
	}
	for _, log := range logs {
		for line := range strings.Lines(read(s.t, log)) {
			if strings.HasPrefix(line, answers) {
				s.c.tally[strings.TrimSpace(line)]++
			}
		}
	}
	if now, ok := s.h.status(s.run); ok && now.Plugin != nil {
		s.c.tally["plugin: starts in the last life"] += now.Plugin.Starts
		s.c.tally["plugin: answers in the last life"] += int(now.Plugin.Calls)
		s.c.tally["plugin: answers refused in the last life"] += int(now.Plugin.Refused)
		s.c.tally["plugin: ends before the last life's"] += now.Plugin.Ends
	}
}
