package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// endless is a run that is not over before it is ended.
func endless(name string, more ...string) []string {
	return up(name, append(set("training.steps=200000", "checkpoints.every_steps=20"), more...)...)
}

// trains waits until this life of a run has decided a step.
func (h *home) trains(r *running, run string) {
	h.t.Helper()
	before := -1
	h.until(r, run, "training", func(s admin.Snapshot) bool {
		if s.Client == nil || s.State != admin.Training {
			return false
		}
		if before < 0 {
			before = int(s.Step)
		}
		return int(s.Step) > before
	})
}

// TestStops ends one run in every way that a user has, and goes on with it.
func TestStops(t *testing.T) {
	if testing.Short() {
		return
	}
	h := newHome(t)
	checkDetached(t, h)
	checkUnfinished(t, h, "stops")

	r := h.start(endless("stops", "--resume")...)
	h.trains(r, "stops")
	checkLive(t, h)
	r.signal(syscall.SIGINT)
	r.wait().want(t, 75, "up, interrupted once")
	step := checkSaved(t, h, "signal interrupt")

	checkOther(t, h, "stops")

	r = h.start("up", "--plain", "--resume") // the newest run, with its own configuration
	h.trains(r, "stops")
	r.signal(syscall.SIGTERM)
	r.wait().want(t, 75, "up, terminated")
	if now := checkSaved(t, h, "signal terminated"); now <= step {
		t.Errorf("want the resumed run beyond step %d, got %d", step, now)
	}

	r = h.start(endless("stops", "--resume")...)
	h.trains(r, "stops")
	r.signal(syscall.SIGINT)
	asked := time.Now()
	eventually(t, "the run takes note", func() bool { // two signals at once may come as one
		s, ok := h.status("stops")
		return r.ended() || ok && (s.State == "stopping" || s.State.Over())
	})
	_ = r.cmd.Process.Signal(syscall.SIGINT) // it may be over already
	if got := r.wait(); got.code != 75 {     // there are checkpoints to go on from
		t.Errorf("interrupted twice: want exit 75, got %d: %s", got.code, got.err)
	}
	if took := time.Since(asked); took > 15*time.Second {
		t.Errorf("interrupted twice: want a quick end, it took %v", took)
	}
	checkLost(t, h)
	h.must(0, "journal", "verify", "stops")
	h.must(0, "checkpoints", "verify", "stops")
}

// checkDetached: up --detach comes back at once, and everything else works
// from another terminal.
func checkDetached(t *testing.T, h *home) {
	t.Helper()
	var started struct {
		Name, Directory, Output string
		Pid                     int
	}
	h.must(0, append(endless("stops"), "--detach", "--json")...).json(t, &started)
	if started.Name != "stops" || started.Directory != h.path("stops") || started.Pid == 0 {
		t.Fatalf("want run stops in %s, got %+v", h.path("stops"), started)
	}
	events := h.start("events", "-f")
	h.trains(nil, "stops")
	log := h.start("logs", "-f", "drafter/0")
	if r := h.must(0, "health"); !strings.HasPrefix(r.out, "healthy") {
		t.Errorf("health: want healthy, got %s", r.out)
	}
	if r := h.must(0, "status"); !strings.Contains(r.out, "stops · training") {
		t.Errorf("status: got %s", r.out)
	}
	eventually(t, "events and logs are followed", func() bool {
		return strings.Contains(events.out.String(), "step decided") && strings.Contains(log.out.String(), "drafter")
	})
	if r := h.must(0, "down"); !strings.Contains(r.out, "run stops has ended now, with exit 75 at step ") {
		t.Errorf("down: got %s", r.out)
	}
	for _, f := range []*running{events, log} { // they end with the run
		f.wait().want(t, 0, strings.Join(f.cmd.Args[1:], " "))
	}
	if text := events.out.String(); !strings.Contains(text, "run ends") {
		t.Errorf("events -f: want the end, got\n%s", text)
	}
	checkSaved(t, h, "down")
}

// checkSaved: the state that the run ended with is on the disk; it gives its step.
func checkSaved(t *testing.T, h *home, why string) int {
	t.Helper()
	s := summaryOf(t, h, "stops")
	var all []published
	h.must(0, "checkpoints", "list", "stops", "--json").json(t, &all)
	if len(all) == 0 || all[len(all)-1].Step != int(s.Steps) || s.Exit != 75 || !strings.Contains(s.ExitReason, why) {
		t.Errorf("want exit 75 for %q and a checkpoint of step %d, got %q and %+v", why, s.Steps, s.ExitReason, all)
	}
	return int(s.Steps)
}

// checkUnfinished: an unfinished run is not started over by mistake.
func checkUnfinished(t *testing.T, h *home, run string) {
	t.Helper()
	r := h.must(2, endless(run)...)
	if !strings.Contains(r.err, "unfinished") || !strings.Contains(r.err, "up --resume --name "+run) {
		t.Errorf("want told to resume, got %s", r.err)
	}
}

// checkOther: a run does not go on as another one, and keeps its configuration.
func checkOther(t *testing.T, h *home, run string) {
	t.Helper()
	before := read(t, h.path(run, "config.yaml"))
	for what, settings := range map[string][]string{
		"steps: want what the run began with, 200000, got 30": set("training.steps=30"),
		"training.learning_rate: want":                        set("training.learning_rate=0.5"),
	} {
		r := h.must(2, append([]string{"up", "--plain", "--resume", "--name", run}, settings...)...)
		if !strings.Contains(r.err, what) || !strings.Contains(r.err, "drafter.init_from") {
			t.Errorf("want %q refused, got %s", what, r.err)
		}
	}
	if read(t, h.path(run, "config.yaml")) != before {
		t.Error("a refused resume has changed the run's configuration")
	}
}

// checkLive: a live run keeps its name.
func checkLive(t *testing.T, h *home) {
	t.Helper()
	for _, more := range [][]string{nil, {"--resume"}, {"--detach"}} {
		r := h.must(1, endless("stops", more...)...)
		if !strings.Contains(r.err, "a live supervisor has it") || !strings.Contains(r.err, "down stops") {
			t.Errorf("%v: want refused, got %s", more, r.err)
		}
	}
}

// checkLost: after kill -9 everybody is told the truth.
func checkLost(t *testing.T, h *home) {
	t.Helper()
	r := h.start(endless("stops", "--resume")...)
	h.trains(r, "stops")
	r.signal(syscall.SIGKILL)
	r.wait()
	if left := h.left(5 * time.Second); len(left) > 0 {
		t.Errorf("processes outlive the supervisor: %v", left)
	}
	if r := h.must(0, "status"); !strings.Contains(r.out, "stops · lost") || !strings.Contains(r.err, "gone and wrote no end") {
		t.Errorf("status: got %s%s", r.out, r.err)
	}
	if r := h.must(2, "health"); !strings.HasPrefix(r.out, "critical") {
		t.Errorf("health: got %s", r.out)
	}
	if r := h.must(0, "down"); !strings.Contains(r.out, "is not running") {
		t.Errorf("down: got %s", r.out)
	}
	checkUnfinished(t, h, "stops")
}

// TestStopBeforeTraining: an interrupt while workers start ends them at once.
func TestStopBeforeTraining(t *testing.T) {
	if testing.Short() {
		return
	}
	want(t) // target and data are there
	t.Parallel()
	h := newHome(t)
	r := h.start(up("early")...)
	h.until(r, "early", "workers are launched", func(s admin.Snapshot) bool { return s.Client != nil && s.Stage == "launch" })
	r.signal(syscall.SIGINT)
	r.wait().want(t, 75, "up, interrupted while workers start")
	if s := summaryOf(t, h, "early"); s.Exit != 75 || s.Steps != 0 || s.Lossless != nil {
		t.Errorf("want exit 75 at step 0, got %+v", s)
	}
	// it goes on from nothing, and ends as early as it is told to
	h.must(75, up("early", append(set("training.stop_after.steps=3"), "--resume")...)...)
	s := summaryOf(t, h, "early")
	var all []published
	h.must(0, "checkpoints", "list", "early", "--json").json(t, &all)
	if s.Steps < 3 || s.Steps == steps || !strings.Contains(s.ExitReason, "stop_after") || len(all) == 0 || all[len(all)-1].Step != int(s.Steps) {
		t.Errorf("want a stop after 3 steps with a checkpoint, got %d steps, %q, %+v", s.Steps, s.ExitReason, all)
	}
}
