package drive_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
	"github.com/dflash-runner/dflash-runner/runner/hang"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how much of the bubble's time a run may take.
const limit = time.Hour

// rig is a run of a target and two drafters: two epochs of three steps of four
// rows of four samples.
type rig struct {
	t        testing.TB
	launcher *drivetest.Launcher
	memory   *drivetest.Memory
	store    *drivetest.Store
	config   drive.Config
	journal  drive.Journal // what the loop writes to; nil: the journal itself
	dir      string
	index    *rows.Index
	rows     rows.Config
	seen     func(l *drive.Loop, e runner.Event) // called in a goroutine of the rig
	loop     *drive.Loop

	mu     sync.Mutex // guards below
	events []runner.Event
}

func newRig(t testing.TB) *rig {
	dir := t.TempDir()
	r := &rig{t: t, launcher: &drivetest.Launcher{}, memory: &drivetest.Memory{}, dir: dir, index: &rows.Index{Sources: []string{"test"}}}
	r.store = &drivetest.Store{Dir: dir, Memory: r.memory}
	for range 48 {
		r.index.Samples = append(r.index.Samples, rows.SampleInfo{Tokens: 16, Supervised: 8, Anchors: 7})
	}
	r.index.Samples[7].Anchors = 0 // never planned
	r.rows = rows.Config{Buckets: []uint32{64}, Anchors: 8, RowsPerStep: 4, Drafters: 2, Draws: 1, Schedule: rows.Schedule{Peak: 1e-3, Total: 6}}
	r.config = drive.Config{Launcher: r.launcher, Memory: r.memory, Store: r.store, Observe: r.observe,
		SchedulerDeadline: 2 * time.Second, Hang: hang.Limits{Heartbeat: 10 * time.Second, WarmUp: time.Minute, Order: 20 * time.Second}, Draws: 1,
		Core: core.Config{Devices: map[string]int{"cpu": 2}, GateWidth: 1, Slots: 3, Steps: 6, HorizonSteps: 2,
			ImageEvery: 2, Checkpoint: 2, KeepLast: 2, NonFinite: 3,
			Evaluation: core.Evaluation{Every: 2, AtStart: true, AtEnd: true, Heldout: 4, HeldoutChunk: 2, Prompts: 3, PromptChunk: 2, NewTokens: 8},
			Restart:    core.Restart{Budget: 3, Base: time.Second, Cap: time.Minute},
			Deadlines: core.Deadlines{Launch: time.Minute, WarmUp: time.Minute, Order: 30 * time.Second, Step: 30 * time.Second, Abort: 30 * time.Second,
				Image: 30 * time.Second, Evaluate: 30 * time.Second, Drain: 30 * time.Second, Stop: 5 * time.Minute}}}
	for _, w := range []runner.Worker{{Role: runner.Target}, {Role: runner.Drafter}, {Role: runner.Drafter, Rank: 1}} {
		r.config.Core.Workers = append(r.config.Core.Workers, core.Worker{Worker: w, Device: "cpu"})
	}
	return r
}

func (r *rig) observe(e runner.Event) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	if r.seen != nil {
		r.seen(r.loop, e)
	}
}

// event gives the first event of a name, or nil.
func (r *rig) event(name string) *runner.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.events {
		if r.events[i].Name == name {
			return &r.events[i]
		}
	}
	return nil
}

// run drives the loop to its end and closes the books: nothing is left open,
// and every life was killed once at most.
func (r *rig) run() (core.Finish, drive.View) {
	r.t.Helper()
	p, err := rows.NewPlanner(r.index, r.rows)
	if err != nil {
		r.t.Fatal(err)
	}
	w, resume := r.open()
	r.config.Core.Planner, r.config.Core.Excluded, r.config.Core.Resume = p, p.Excluded(), resume
	r.config.Plannable = p.Plannable()
	r.config.Builtin = drive.Fixed{Seed: 1, Samples: p.Plannable(), Draws: 1}
	if r.config.Journal = r.journal; r.journal == nil {
		r.config.Journal = w
	} else if f, ok := r.journal.(*badJournal); ok {
		f.Writer = w
	}
	if r.loop, err = drive.New(r.config); err != nil {
		r.t.Fatal(err)
	}
	late := time.AfterFunc(limit, func() {
		r.t.Errorf("the run does not end")
		r.loop.Stop(true, "the test's patience")
	})
	f := r.loop.Run(context.Background())
	late.Stop()
	if err := w.Close(); err != nil && r.journal == nil {
		r.t.Error(err)
	}
	if n := r.memory.Open(); n != 0 {
		r.t.Errorf("%d regions are still open", n)
	}
	for _, p := range r.launcher.All() {
		select {
		case <-p.Done():
		default:
			r.t.Errorf("I8: %v outlives the loop", p.Life())
		}
		if p.Kills() > 1 {
			r.t.Errorf("%v was killed %d times", p.Life(), p.Kills())
		}
	}
	if n := r.launcher.MostWarming(); n > r.config.Core.GateWidth {
		r.t.Errorf("I2: %d workers warmed up at once", n)
	}
	v, ok := r.loop.View(context.Background())
	if !ok || !v.Finished || len(v.Pids) != 0 {
		r.t.Errorf("the last view: %v, finished %v, pids %v", ok, v.Finished, v.Pids)
	}
	return f, v
}

// open goes on with the rig's journal, or begins one.
func (r *rig) open() (*journal.Writer, *core.Resume) {
	dir := filepath.Join(r.dir, "journal")
	if _, err := journal.Scan(dir, func(journal.Entry) error { return nil }); err != nil {
		w, err := journal.Create(dir, journal.RunID{1})
		if err != nil {
			r.t.Fatal(err)
		}
		return w, nil
	}
	var v journal.Recover
	w, _, err := journal.Open(dir, v.Visit)
	if err != nil {
		r.t.Fatal(err)
	}
	s := v.State()
	return w, &core.Resume{Lineage: s.Lineage, Excluded: s.Excluded, Arranged: s.Arranged, Plans: s.Plans, Committed: s.Committed,
		Checkpoints: s.Checkpoints[max(0, len(s.Checkpoints)-1):], Evaluations: s.Evaluations, Rows: s.Rows}
}

// verify proves the journal from its files.
func (r *rig) verify() journal.Report {
	r.t.Helper()
	rep, err := journal.Verify(filepath.Join(r.dir, "journal"), journal.Facts{Index: r.index, Config: r.rows, BitIdentical: true})
	if err != nil {
		r.t.Errorf("I6: %v", err)
	}
	return rep
}

// wholeRun is what every run that ends with 0 must have done.
func (r *rig) wholeRun(f core.Finish, v drive.View) {
	r.t.Helper()
	if f.Code != runner.ExitDone {
		r.t.Errorf("finish %+v, failures %+v", f, v.Failures)
	}
	rep := r.verify()
	if rep.Committed != 6 || rep.Epochs != 2 || rep.Samples != 94 || rep.Excluded != 1 || !rep.Ended {
		r.t.Errorf("the journal holds %+v", rep)
	}
}

// bubble runs a test in time of its own.
func bubble(t *testing.T, name string, f func(t *testing.T, r *rig)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, newRig(t)) })
	})
}
