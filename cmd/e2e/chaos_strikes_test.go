package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// strikes is a history of one run.
type strikes struct {
	t    *testing.T
	c    *chaos
	h    *home
	rand *rand.Rand
	run  string
	left int // strikes to come
	done bool
	log  []string
	w    *gauge
	most figures

	targets int
	plugin  []string // settings; none: the built-in decides
	any     bool     // it changes the order

	ends map[int]string // exit codes that this life may end with, and why
}

func (s *strikes) note(format string, a ...any) { s.log = append(s.log, fmt.Sprintf(format, a...)) }

func (s *strikes) said() string { return strings.Join(s.log, "\n") }

// live starts a supervisor's life, strikes in it, and sees how it ends.
func (s *strikes) live(life int) {
	settings := slices.Concat(s.c.settings, s.plugin)
	args := append(up(s.run, settings...), "--resume")
	if begun, err := filepath.Glob(s.h.path(s.run, "journal", "*.journal")); err != nil || len(begun) == 0 {
		args = up(s.run, settings...)
	}
	s.ends = map[int]string{0: "done"}
	faults := s.faults()
	r := s.h.faulty(faults, args...)
	s.note("life %d: faults %v", life, faults)
	s.c.lives++
	s.w = &gauge{h: s.h, run: s.run, r: r}
	for s.left > 0 && !r.ended() {
		s.left--
		s.strike()
	}
	eventually(s.t, "this life ends", func() bool { s.w.look(); return r.ended() })
	code := r.wait().code
	why, may := s.ends[code]
	if _, asked := s.ends[75]; code == 1 && asked && strings.Contains(summaryOf(s.t, s.h, s.run).ExitReason, "no drafter was left to save, before there was a checkpoint") {
		why, may = "stopped, and the last drafter died", true
	}
	if !may {
		s.t.Fatalf("life %d ended with %d, want one of %v\n%s\n%s", life, code, s.ends, r.out.String(), r.err.String())
	}
	s.note("ended with %d: %s", code, why)
	s.done = code == 0
	s.most.raise(s.w.most)
	s.c.most.raise(s.w.most)
	if left := s.h.left(patience / 36); len(left) > 0 {
		s.t.Fatalf("processes outlive the supervisor: %v", left)
	}
	if s.rand.IntN(3) == 0 && code == -1 {
		s.truncate()
	}
}

// faults are those that workers strike themselves with, inside an order.
func (s *strikes) faults() (all []string) {
	for s.rand.IntN(2) == 0 && s.left > 0 {
		what := []string{"exit", "raise", "refuse", "sigkill"}[s.rand.IntN(4)]
		fault := fmt.Sprintf("drafter/%d:%s:%d:%s", s.rand.IntN(s.c.drafters), []string{"train", "pull", "commit", "image", "join", "load", "abort"}[s.rand.IntN(7)], 1+s.rand.IntN(8), what)
		if s.rand.IntN(3) == 0 {
			fault = fmt.Sprintf("target/%d:%s:%d:%s", s.rand.IntN(s.targets), []string{"produce", "evaluate"}[s.rand.IntN(2)], 1+s.rand.IntN(20), what)
		}
		all = append(all, fault)
		s.left--
		s.c.tally["fault in an order: "+what]++
	}
	return all
}

// strike waits for a moment and does something then.
func (s *strikes) strike() {
	kinds := []struct {
		what string
		do   func(admin.Snapshot, admin.WorkerStatus)
	}{
		{"SIGKILL to a worker", s.signalWorker(syscall.SIGKILL)},
		{"SIGKILL to a worker", s.signalWorker(syscall.SIGKILL)},
		{"SIGSTOP to a worker", s.signalWorker(syscall.SIGSTOP)},
		{"SIGSTOP, then SIGCONT to a worker", s.pauseWorker},
		{"SIGKILL to all drafters", s.killDrafters},
		{"SIGKILL to the supervisor", s.killSupervisor},
		{"SIGKILL to the supervisor", s.killSupervisor},
		{"SIGSTOP, then SIGCONT to the supervisor", s.pauseSupervisor},
		{"SIGTERM to the supervisor", s.stop},
		{"full disk", s.fill},
		{"full disk", s.fill},
	}
	if s.plugin != nil {
		kinds = append(kinds, kinds[0], kinds[0], kinds[0])
		for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM} {
			kinds[len(kinds)-3+i].what, kinds[len(kinds)-3+i].do = fmt.Sprintf("%s to the plugin", unix.SignalName(sig)), s.signalPlugin(sig)
		}
	}
	k := kinds[s.rand.IntN(len(kinds))]
	moment, there := s.moment()
	now, w, ok := s.await(there)
	if !ok {
		s.note("%s at %s: the life ended before", k.what, moment)
		return
	}
	s.note("%s at %s: step %d, %s %s %s", k.what, moment, now.Step, w.Name, w.State, w.Order)
	s.c.tally[k.what]++
	s.c.states[fmt.Sprintf("%s %s %s", w.Role, w.State, w.Order)]++
	k.do(now, w)
}

// moment chooses what is waited for; it gives the worker it is about.
func (s *strikes) moment() (what string, there func(admin.Snapshot) (admin.WorkerStatus, bool)) {
	name := runner.Worker{Role: runner.Drafter, Rank: runner.Rank(s.rand.IntN(s.c.drafters))}
	if s.rand.IntN(3) == 0 {
		name = runner.Worker{Role: runner.Target, Rank: runner.Rank(s.rand.IntN(s.targets))}
	}
	state := []string{"launching", "waiting", "warming", "certified", "backoff", "lost", "draining"}[s.rand.IntN(7)]
	order := []string{"train", "produce", "pull", "commit", "image", "join", "load", "evaluate", "abort"}[s.rand.IntN(9)]
	step, more := -1, 1+s.rand.IntN(4)
	since := func(now admin.Snapshot) int { // steps from when this was asked first
		if step < 0 && now.State == admin.Training {
			step = int(now.Step)
		}
		return max(0, int(now.Step)-max(step, 0))
	}
	pick := s.rand.IntN(3)
	what = []string{fmt.Sprintf("%s %s", name, state), fmt.Sprintf("%s at %s", name, order), fmt.Sprintf("%d steps later", more)}[pick]
	return what, func(now admin.Snapshot) (admin.WorkerStatus, bool) {
		i := slices.IndexFunc(now.Workers, func(w admin.WorkerStatus) bool { return w.Name == name })
		if i < 0 {
			return admin.WorkerStatus{}, false
		}
		w := now.Workers[i]
		late := since(now) >= 3 || int(now.Step) == s.c.steps // short states are easily missed
		switch pick {
		case 0:
			return w, w.State == state || late
		case 1:
			return w, w.Order == order || late
		}
		return w, since(now) >= more || int(now.Step) == s.c.steps
	}
}

// await polls until the moment is there; false where the life ends before.
func (s *strikes) await(there func(admin.Snapshot) (admin.WorkerStatus, bool)) (now admin.Snapshot, w admin.WorkerStatus, ok bool) {
	s.t.Helper()
	eventually(s.t, "a moment", func() bool {
		s.w.look()
		if s.w.r.ended() {
			return true
		}
		var live bool
		if now, live = s.h.status(s.run); live && now.Client != nil && now.State != admin.Ended {
			w, ok = there(now)
		}
		return ok
	})
	return now, w, ok
}

// send signals a process of the run; one that is gone already is none of it.
func (s *strikes) send(pid int, sig syscall.Signal) {
	if pid > 1 && slices.ContainsFunc(s.h.processes(), func(p seen) bool { return p.pid == pid }) {
		_ = syscall.Kill(pid, sig)
	}
}

func (s *strikes) signalWorker(sig syscall.Signal) func(admin.Snapshot, admin.WorkerStatus) {
	return func(_ admin.Snapshot, w admin.WorkerStatus) { s.send(w.Pid, sig) }
}

// pauseWorker lets it go on once the supervisor is seen to wait for it, or to go
// on without it.
func (s *strikes) pauseWorker(now admin.Snapshot, w admin.WorkerStatus) {
	s.send(w.Pid, syscall.SIGSTOP)
	looks := 0
	s.await(func(later admin.Snapshot) (admin.WorkerStatus, bool) {
		looks++
		for _, v := range later.Workers {
			if v.Name == w.Name {
				return v, v.Generation != w.Generation || v.Order != "" && v.SinceMS > 300 || later.Step > now.Step+2 || looks > 100
			}
		}
		return w, true
	})
	s.send(w.Pid, syscall.SIGCONT)
}

func (s *strikes) killDrafters(now admin.Snapshot, _ admin.WorkerStatus) {
	for _, w := range now.Workers {
		if w.Role == runner.Drafter {
			s.send(w.Pid, syscall.SIGKILL)
		}
	}
}

func (s *strikes) killSupervisor(admin.Snapshot, admin.WorkerStatus) {
	s.ends[-1] = "killed"
	s.send(s.w.r.cmd.Process.Pid, syscall.SIGKILL)
	<-s.w.r.done
}

// pauseSupervisor stops it until the kernel says that it is stopped.
func (s *strikes) pauseSupervisor(admin.Snapshot, admin.WorkerStatus) {
	pid := s.w.r.cmd.Process.Pid
	s.send(pid, syscall.SIGSTOP)
	eventually(s.t, "the supervisor is stopped", func() bool { return s.w.r.ended() || strings.HasPrefix(stateOf(pid), "T") })
	s.send(pid, syscall.SIGCONT)
}

func (s *strikes) stop(admin.Snapshot, admin.WorkerStatus) {
	s.ends[75] = "stopped"
	s.send(s.w.r.cmd.Process.Pid, syscall.SIGTERM)
	<-s.w.r.done
}

// fill leaves the run's disk without room until the run says so or goes on for
// some steps, and then frees it.
func (s *strikes) fill(now admin.Snapshot, w admin.WorkerStatus) {
	if os.Getenv(insideVariable) == "" {
		s.note("no mount namespace to be had: the disk is not filled")
		s.c.tally["full disk, left out"]++
		return
	}
	s.ends[1] = "no room on the disk"
	filler := filepath.Join(s.h.dir, "runs", ".filler")
	f, err := os.Create(filler)
	if err != nil {
		s.t.Fatal(err)
	}
	zeros := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(zeros)
	}
	leave := s.rand.IntN(256 << 10) // bytes of room, so that it ends anywhere in a file
	if info, stat := f.Stat(); stat == nil {
		err = f.Truncate(max(0, info.Size()-int64(leave)))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.await(func(later admin.Snapshot) (admin.WorkerStatus, bool) {
		return w, strings.Contains(fmt.Sprint(later.Degraded), "no space left") || later.Step > now.Step+6 || int(later.Step) == s.c.steps
	})
	if err := f.Close(); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Remove(filler); err != nil {
		s.t.Fatal(err)
	}
}

// truncate cuts the newest checkpoint's image of a run that is not alive.
func (s *strikes) truncate() {
	all, err := filepath.Glob(s.h.path(s.run, "checkpoints", "step-*", "image.safetensors"))
	if err != nil || len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b string) int { return stepOf(a) - stepOf(b) })
	name := all[len(all)-1]
	info, err := os.Stat(name)
	if err == nil {
		err = os.Truncate(name, s.rand.Int64N(info.Size()))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.note("truncated %s", name)
	s.c.tally["newest image truncated"]++
}

func stepOf(image string) (n int) {
	if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(image)), "step-%d", &n); err != nil {
		return -1
	}
	return n
}

// stateOf gives a process's state letter, or nothing.
func stateOf(pid int) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}
