package e2e

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// TestTenKills kills the supervisor at ten moments of a run, each followed by a
// resume: the run ends as if nothing had happened, bit for bit (I7), each time
// nothing outlives it (I8), and the journal proves itself after each kill.
func TestTenKills(t *testing.T) {
	if testing.Short() {
		return // the whole run is story enough
	}
	reference := want(t)
	h := newHome(t)
	k := newKiller(t, h, "killed")
	for i, m := range []struct {
		what string
		at   func(r *running)
	}{
		{"at launch", k.atLaunch},
		{"in a warm-up", k.warming},
		{"early in training", k.training},
		{"inside a checkpoint", k.publishing},
		{"in training", k.training},
		{"at launch again", k.atLaunch},
		{"inside a later checkpoint", k.publishing},
		{"late in training", k.training},
		{"after the last step", k.ending},
		{"while exporting", k.exporting},
	} {
		r := k.start(i)
		m.at(r)
		k.kill(r, m.what)
		for again := 0; m.what == "late in training" && k.inside == 0 && again < 5; again++ {
			r := k.start(i) // a checkpoint is written in milliseconds: the kill may come after it
			k.publishing(r)
			k.kill(r, "inside a checkpoint once more")
		}
	}
	if k.inside == 0 {
		t.Error("want a kill inside a checkpoint, got none")
	}
	end := k.start(10).wait()
	end.want(t, 0, "last resume")
	records := h.journal("killed")
	survivors(t, records).equal(t, reference.history, steps)
	reference.sameSummary(t, summaryOf(t, h, "killed"))
	if n := count(records, "started"); n < 8 {
		t.Errorf("want a start record for each life that came to its journal, got %d", n)
	}
	if n := count(records, "restore"); n < 4 {
		t.Errorf("want a restore for each kill in training, got %d", n)
	}
	h.must(0, "journal", "verify", "killed")
	h.must(0, "checkpoints", "verify", "killed")
	if read(t, h.path("killed", "export", "model.safetensors")) != reference.export {
		t.Errorf("the export differs from the undisturbed run's")
	}
	if left := partials(h, "killed"); len(left) > 0 {
		t.Errorf("want no half checkpoints left, got %v", left)
	}
}

// killer starts a run again and again and ends it with SIGKILL.
type killer struct {
	t    *testing.T
	h    *home
	run  string
	rand *rand.Rand

	inside int // kills that left half a checkpoint
}

func newKiller(t *testing.T, h *home, run string) *killer {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("E2E_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("E2E_SEED=%d gives the same moments", seed)
	return &killer{t: t, h: h, run: run, rand: rand.New(rand.NewPCG(seed, 0))}
}

// start starts the run, or goes on with it where its journal was begun.
func (k *killer) start(life int) *running {
	k.t.Helper()
	args := up(k.run, set("images.every_steps=1", "checkpoints.every_steps=2", "checkpoints.keep_last=100")...)
	if begun, err := filepath.Glob(k.h.path(k.run, "journal", "*.journal")); err == nil && len(begun) > 0 {
		args = []string{"up", "--plain", "--resume", "--name", k.run} // with the run's own configuration
	} else if life > 3 {
		k.t.Fatal("want a journal after training")
	}
	return k.h.start(args...)
}

// kill ends the supervisor as the kernel would, and looks at what is left.
func (k *killer) kill(r *running, what string) {
	k.t.Helper()
	alive := k.h.workers()
	if r.ended() {
		k.t.Fatalf("%s: the run ended before it was killed: %+v", what, r.wait())
	}
	r.signal(syscall.SIGKILL)
	r.wait()
	if len(partials(k.h, k.run)) > 0 {
		k.inside++
	}
	if left := k.h.left(5 * time.Second); len(left) > 0 {
		k.t.Errorf("%s: processes outlive the supervisor: %v", what, left)
	}
	s, ok := k.h.status(k.run)
	k.t.Logf("killed %s: last status step %d, lineage %d; %d workers, %d half checkpoints", what, s.Step, s.Lineage, alive, len(partials(k.h, k.run)))
	if !ok || s.State != admin.Lost {
		k.t.Errorf("%s: status: want lost, got %q", what, s.State)
	}
	if len(named(k.h.events(k.run), "step decided")) > 0 {
		k.h.must(0, "journal", "verify", k.run)
	}
}

// moment lets a random part of a second pass: here that is the point.
func (k *killer) moment(longest time.Duration) {
	<-time.After(time.Duration(k.rand.Int64N(int64(longest))))
}

// stage waits for a stage of this life to run.
func (k *killer) stage(r *running, name string) {
	k.t.Helper()
	k.h.until(r, k.run, name, func(s admin.Snapshot) bool { return s.Client != nil && s.Stage == name })
}

func (k *killer) atLaunch(r *running) {
	k.stage(r, "launch")
	k.moment(2 * time.Second)
}

func (k *killer) warming(r *running) {
	k.h.until(r, k.run, "a holder of the gate", func(s admin.Snapshot) bool { return s.Client != nil && s.Gate.Holder != nil })
	k.moment(500 * time.Millisecond)
}

// training waits until this life has decided one to three steps.
func (k *killer) training(r *running) {
	k.t.Helper()
	before, more := len(named(k.h.events(k.run), "step decided")), 1+k.rand.IntN(3)
	eventually(k.t, "steps are decided", func() bool {
		now := named(k.h.events(k.run), "step decided")
		return r.ended() || len(now) >= before+more || len(now) > before && now[len(now)-1].Step == steps
	})
	k.moment(100 * time.Millisecond)
}

// publishing watches for the first file of a checkpoint that is not whole, and
// returns at once. The kill comes before its data can be on the disk.
func (k *killer) publishing(r *running) {
	k.t.Helper()
	dir := k.h.path(k.run, "checkpoints")
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		k.t.Fatal(err)
	}
	for late := time.Now().Add(patience); !begun(k.t, fd); {
		if time.Now().After(late) || r.ended() {
			k.t.Fatalf("want a checkpoint begun, got none: %s", r.err.String())
		}
	}
}

// begun waits a while for the directory of a half checkpoint to be made.
func begun(t *testing.T, fd int) bool {
	t.Helper()
	if ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 200); err != nil || ready == 0 {
		return false // interrupted, or nothing yet
	}
	names := make([]byte, 16<<10)
	n, err := unix.Read(fd, names)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(names[:n]), ".partial-")
}

func (k *killer) ending(r *running) {
	before := len(named(k.h.events(k.run), "run ends"))
	eventually(k.t, "the run ends", func() bool { return r.ended() || len(named(k.h.events(k.run), "run ends")) > before })
	k.moment(300 * time.Millisecond)
}

func (k *killer) exporting(r *running) {
	k.stage(r, "export")
	k.moment(500 * time.Millisecond)
}

// partials lists checkpoints that are not whole.
func partials(h *home, run string) []string {
	left, err := filepath.Glob(h.path(run, "checkpoints", ".partial-*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return left
}
