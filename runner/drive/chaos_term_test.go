package drive_test

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
	"github.com/dflash-runner/dflash-runner/runner/hang"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// term is one supervisor's life.
type term struct {
	w        *world
	number   int
	launcher *drivetest.Launcher
	memory   *drivetest.Memory
	file     *journal.Writer
	path     string // of the journal's segment
	loop     *drive.Loop
	over     chan struct{}
	excuse   map[int]string // what it may end with besides 0, and why

	mu       sync.Mutex // held by all that writes to the disk; guards below
	dead     bool       // SIGKILL came: nothing reaches the disk any more
	left     string     // the disk as it was then
	size     int64      // of the journal
	synced   int64      // so much of it is durable
	decided  runner.Step
	next     int64  // where the plan of the step after it ends; 0: not known
	broken   string // "append" or "sync": the journal's next one fails
	room     int64  // bytes of checkpoints until the disk is full; negative: no bound
	refuse   bool   // the next image gets no memory
	schedule string // how the scheduler's next answer is bad
	stopped  bool   // a verdict ended the run

	arms     sync.Mutex // guards below
	armed    map[runner.Life]drivetest.Fault
	starting map[runner.Life]chan kind // launches and warm-ups that can be struck
	counts   map[string]int
}

func newTerm(w *world, number int) *term {
	t := &term{w: w, number: number, memory: &drivetest.Memory{}, over: make(chan struct{}), excuse: map[int]string{}, room: -1,
		armed: map[runner.Life]drivetest.Fault{}, starting: map[runner.Life]chan kind{}, counts: map[string]int{}}
	t.launcher = &drivetest.Launcher{Before: t.launching, WarmUp: t.warming, Fault: t.fault, Wait: t.wait, Saving: t.saving, Poison: w.s.poison,
		How:  func(p *drivetest.Process) int { return t.random("lie", p.Life()).IntN(30) },
		Warm: time.Millisecond, Ladder: 5 * time.Millisecond, Reap: 3 * time.Millisecond}
	w.s.stretch(&t.launcher.Ladder, "lost", "")
	t.memory.RefuseImage = t.noImage
	return t
}

// random gives numbers that the seed, this life and the names decide.
func (t *term) random(names ...any) *rand.Rand {
	return t.w.s.random(append([]any{t.number, " "}, names...)...)
}

// config is the loop's.
func (t *term) config() drive.Config {
	p, err := rows.NewPlanner(t.w.s.index, t.w.s.rows)
	if err != nil {
		t.w.t.Fatal(err)
	}
	c := drive.Config{Core: t.w.s.core, Launcher: t.launcher, Memory: t.memory, Journal: mortalJournal{t},
		Store:   mortalStore{t, &drivetest.Store{Dir: t.w.dir, Memory: t.memory, Writer: mortalDisk{t: t}}},
		Observe: t.saw, SchedulerDeadline: 100 * time.Millisecond, Hang: hang.Limits{Heartbeat: 150 * time.Millisecond, WarmUp: 10 * time.Second, Order: 10 * time.Second},
		Plannable: p.Plannable(), Draws: t.w.s.rows.Draws}
	fixed := drive.Fixed{Seed: t.w.s.seed, Samples: p.Plannable(), Draws: c.Draws}
	c.Builtin, c.Scheduler = fixed, moody{fixed, t}
	switch {
	case t.w.follow != nil:
		c.Scheduler = follower{fixed, &t.w.follow}
	case t.w.s.plugin:
		c.Scheduler, c.Pool = &plugin{moody: moody{fixed, t}, done: map[string]int{}}, t.w.s.pool
	}
	c.Core.Planner, c.Core.Excluded = p, p.Excluded()
	t.file, c.Core.Resume = t.w.open()
	return c
}

// run is this life from its start to its end, with nothing left of it.
func (t *term) run() core.Finish {
	w := t.w
	c := t.config()
	all, err := filepath.Glob(filepath.Join(w.dir, "journal", "*.journal"))
	if err != nil || len(all) != 1 {
		w.t.Fatalf("want one segment, got %v, %v", all, err)
	}
	t.path = all[0]
	t.size = t.length()
	t.synced = t.size
	if t.loop, err = drive.New(c); err != nil {
		w.t.Fatalf("life %d: %v", t.number, err)
	}
	late := time.AfterFunc(5*time.Minute, func() {
		w.t.Errorf("I11: life %d does not end", t.number)
		t.loop.Stop(true, "the test's patience")
	})
	struck := make(chan struct{})
	go func() { // ends with the run; waited for below
		defer close(struck)
		t.strikes()
	}()
	f := t.loop.Run(context.Background())
	close(t.over)
	<-struck
	late.Stop()
	time.Sleep(time.Second) // of the bubble's: a call that was left behind ends
	t.closed()
	return f
}

// closed wants nothing left of this life.
func (t *term) closed() {
	t.w.t.Helper()
	if err := t.file.Close(); err != nil && t.excuse[runner.ExitFailed] == "" {
		t.w.t.Error(err)
	}
	t.launcher.Sweep()
	if n := t.memory.Open(); n != 0 {
		t.w.t.Errorf("%d regions are still open", n)
	}
	for _, p := range t.launcher.All() {
		select {
		case <-p.Done():
		default:
			t.w.t.Errorf("I8: %v outlives the loop", p.Life())
		}
		if p.Kills() > 1 {
			t.w.t.Errorf("%v was killed %d times", p.Life(), p.Kills())
		}
	}
	if n := t.launcher.MostWarming(); n > t.w.s.core.GateWidth {
		t.w.t.Errorf("I2: %d workers warmed up at once", n)
	}
}

// kill is SIGKILL: what is on the disk now is all that there will be, less
// what of the journal was never synced, and every worker dies with it.
func (t *term) kill() {
	t.mu.Lock()
	if t.dead {
		t.mu.Unlock()
		return
	}
	t.dead = true
	t.left = filepath.Join(filepath.Dir(t.w.dir), "life-"+strconv.Itoa(t.number+1))
	cut := t.synced + t.random("cut").Int64N(t.size-t.synced+1)
	err := errors.Join(t.copy(cut), t.damage())
	t.mu.Unlock()
	if err != nil {
		t.w.t.Errorf("copy the disk: %v", err)
	}
	t.w.note("SIGKILL: the journal has %d bytes, %d durable, %d left", t.size, t.synced, cut)
	for _, p := range t.launcher.All() {
		p.Die()
	}
	t.loop.Stop(true, "this loop is abandoned")
}

// copy takes the disk's picture. t.mu is held.
func (t *term) copy(cut int64) error {
	return filepath.WalkDir(t.w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(t.left, strings.TrimPrefix(path, t.w.dir))
		if d.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if path == t.path {
			b = b[:cut]
		}
		return os.WriteFile(to, b, 0o600)
	})
}

// damage cuts the newest checkpoint's image now and then.
func (t *term) damage() error {
	r := t.random("damage")
	all, err := image.List(t.left)
	if err != nil || len(all) == 0 || r.IntN(3) > 0 && !t.w.on.cut {
		return err
	}
	newest := all[len(all)-1]
	t.w.note("%s is cut", newest.Name)
	return os.Truncate(filepath.Join(newest.Path, image.ImageFile), r.Int64N(drivetest.ImageBytes))
}

func (t *term) length() int64 {
	info, err := os.Stat(t.path)
	if err != nil {
		t.w.t.Errorf("look at the journal: %v", err)
		return 0
	}
	return info.Size()
}
