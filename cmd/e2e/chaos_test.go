package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Flags of the chaos test: `go test ./cmd/e2e -run Chaos -chaos.minutes 60`.
var (
	chaosMinutes = flag.Float64("chaos.minutes", 0, "strike real runs for so many minutes; 0: two histories")
	chaosSeed    = flag.Uint64("chaos.seed", 0, "strike one run as this seed did; 0: a new seed each time")
)

// insideVariable tells the test that it runs in a mount namespace of its own.
const insideVariable = "E2E_CHAOS_INSIDE"

// shortHistories are what a run of all tests can afford.
const shortHistories = 2

// TestChaos_Workers strikes real runs at moments that a seed chooses, read from
// their status and events, and goes on with them until they are done: they end
// as the undisturbed run did, bit for bit, and leave nothing behind. It runs in
// a mount namespace of its own, so that disks can be filled that nobody shares.
// In half of them a plugin decides that is not well, in some of those about a
// target more; one that changes the order of samples changes the bits, so there
// the journal alone is proved.
func TestChaos_Workers(t *testing.T) {
	if testing.Short() {
		return
	}
	c := newChaos(1, 2, 8, set("training.steps=8", "images.every_steps=2", "checkpoints.every_steps=3", "training.horizon_steps=2",
		"evaluate.prompts=1", "evaluate.new_tokens=8", "evaluate.heldout_samples=4"))
	c.strike(t)
}

// TestChaos_Founding does so to five targets and three drafters, in a long test.
func TestChaos_Founding(t *testing.T) {
	if *chaosMinutes == 0 && *chaosSeed == 0 {
		return
	}
	newChaos(foundingTargets, foundingDrafters, foundingSteps, foundingSettings()).strike(t)
}

// strike makes the undisturbed run and strikes others, as long as there is time.
func (c *chaos) strike(t *testing.T) {
	if os.Getenv(insideVariable) == "" && canMount(t) {
		inNamespace(t)
		return
	}
	c.want(t)
	began, last := time.Now(), time.Duration(0)
	for n := 0; !t.Failed() && c.more(n, time.Since(began), last); n++ {
		seed := *chaosSeed
		if seed == 0 {
			seed = seedFor(n%2 == 0)
		}
		from := time.Now()
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { c.history(t, seed) })
		last = time.Since(from)
	}
	c.print(t)
}

// more reports whether another history fits.
func (c *chaos) more(done int, spent, last time.Duration) bool {
	switch {
	case *chaosSeed != 0:
		return done == 0
	case *chaosMinutes == 0:
		return done < shortHistories
	}
	return spent+last < time.Duration(*chaosMinutes*float64(time.Minute))
}

// seedFor draws a seed of a history with a plugin, or without: a short test has
// one of each.
func seedFor(plugin bool) (seed uint64) {
	for seed == 0 || decides(seed) != plugin {
		seed = rand.Uint64()>>1 | 1
	}
	return seed
}

// inNamespace runs this test once more, where what it mounts is its own.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // the child ends with the thread that made it
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0",
		fmt.Sprintf("-chaos.minutes=%v", *chaosMinutes), fmt.Sprintf("-chaos.seed=%d", *chaosSeed))
	like := mounted("", "", "", exec.Command("true")).SysProcAttr
	like.Pdeathsig = syscall.SIGKILL
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), insideVariable+"=1"), like
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("in a mount namespace: %v", err)
	}
}

// chaos is what all histories share.
type chaos struct {
	targets   int // at least
	drafters  int
	steps     int
	settings  []string
	reference undisturbed
	digest    string         // of the last checkpoint's parameters
	tally     map[string]int // strikes by what they were
	states    map[string]int // likewise, by what the worker was at that they were about
	histories int
	lives     int // of supervisors
	deaths    map[string]int
	most      figures
}

// newChaos is about runs of so many workers and steps. No worker is given up,
// and none is waited for long.
func newChaos(targets, drafters, steps int, settings []string) *chaos {
	return &chaos{targets: targets, drafters: drafters, steps: steps, tally: map[string]int{}, states: map[string]int{}, deaths: map[string]int{},
		settings: append(settings, set("checkpoints.keep_last=3", "failure.restarts=100", "failure.backoff_max=500ms", "failure.hang.heartbeat=5s")...)}
}

// want makes the undisturbed run of the same settings.
func (c *chaos) want(t *testing.T) {
	t.Helper()
	h := chaosHome(t)
	r := h.start(up("whole", c.settings...)...)
	w := &gauge{h: h, run: "whole", r: r}
	eventually(t, "the undisturbed run ends", func() bool { w.look(); return r.ended() })
	r.wait().want(t, 0, "up, undisturbed")
	c.reference = undisturbed{history: survivors(t, h.journal("whole")), summary: summaryOf(t, h, "whole"), export: read(t, h.path("whole", "export", "model.safetensors"))}
	c.digest = newestParameters(t, h, "whole", c.steps)
	c.most = w.most
	if c.reference.history.last != c.steps {
		t.Fatalf("reference: want %d steps, got %d", c.steps, c.reference.history.last)
	}
	t.Logf("undisturbed: at most %d descriptors, %d MB", w.most.descriptors, w.most.resident>>20)
	h.clean(t, "whole")
}

// disk is how much room a run's directory has, where it can be bounded.
const disk = "size=48m,mode=0700"

// chaosHome is a home with a small disk for runs, memory file system and
// temporary files of its own, where it may mount.
func chaosHome(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	tmp := filepath.Join(h.dir, "tmp")
	for _, dir := range []string{tmp, filepath.Join(h.dir, "runs")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.env = append(h.env, "TMPDIR="+tmp)
	if os.Getenv(insideVariable) == "" {
		return h
	}
	for dir, options := range map[string]string{filepath.Join(h.dir, "runs"): disk, "/dev/shm": "size=256m"} {
		if err := syscall.Mount("none", dir, "tmpfs", 0, options); err != nil {
			t.Fatalf("mount %s: %v", dir, err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	}
	return h
}

// history strikes one run until it is done.
func (c *chaos) history(t *testing.T, seed uint64) {
	s := &strikes{t: t, c: c, h: chaosHome(t), rand: rand.New(rand.NewPCG(seed, 0)), run: "struck", targets: c.targets}
	defer func() {
		if t.Failed() {
			t.Logf("-chaos.seed=%d struck so:\n%s", seed, s.said())
		}
	}()
	s.plug(seed)
	s.left = 2 + s.rand.IntN(4)
	for life := 0; !s.done; life++ {
		if life > 14 {
			t.Fatal("want the run done after so many lives")
		}
		s.live(life)
	}
	c.check(t, s)
	c.histories++
}
