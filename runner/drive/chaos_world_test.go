package drive_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
)

// outcome is what a run came to.
type outcome struct {
	Committed, Rows, Samples, Skipped, Excluded uint64
	Epochs                                      uint32
	Chain, Parameters                           string
}

// world is a run over all its supervisors' lives.
type world struct {
	t      *testing.T
	s      scene
	dir    string                 // what is on the disk now
	struck *table                 // nil: undisturbed
	here   table                  // cells of this history
	left   int                    // strikes to come
	follow []runner.ArrangeRecord // an order to be given; nil: the scene's scheduler decides

	on hooks // strikes on purpose

	mu     sync.Mutex // guards below
	log    []string
	events []string
}

// hooks are called at moments that a test strikes at; nil: nothing is done.
type hooks struct {
	appended func(t *term, r runner.Record)                           // a record is in the file, nothing after it was done
	durable  func(t *term, next runner.Step)                          // the plan of the next step is, and the step undecided
	order    func(t *term, id runner.Life, o runner.Order) (die bool) // before it is done
	saving   func(t *term, id runner.Life, o runner.Image)            // its copy is taken, nothing is written
	copying  func(t *term, at int64)                                  // so much of a checkpoint is written
	cut      bool                                                     // a kill cuts the newest checkpoint
	opening  func(t *term)                                            // a checkpoint
}

func newWorld(t *testing.T, s scene, dir string) *world {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, s: s, dir: dir, left: 10}
	if s.aim != nil {
		w.left = 30
	}
	return w
}

func (w *world) note(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, time.Now().Format("05.000000 ")+fmt.Sprintf(format, a...))
}

// saw keeps the last events.
func (w *world) saw(e runner.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	who := ""
	if e.Worker != nil {
		who = runner.Life{Worker: *e.Worker, Generation: e.Generation}.String()
	}
	w.events = append(w.events, fmt.Sprintf("%s %s %s step %d: %s", e.At.Format("05.000000"), e.Name, who, e.Step, e.Message))
	w.events = w.events[max(0, len(w.events)-60):]
}

func (w *world) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.log, "\n") + "\nthe last events:\n" + strings.Join(w.events, "\n")
}

// undisturbed runs it whole.
func (w *world) undisturbed() outcome {
	w.left = 0
	return w.toTheEnd()
}

// toTheEnd starts supervisors until one ends with 0, and reads what it left.
func (w *world) toTheEnd() outcome {
	w.t.Helper()
	for n := 1; ; n++ {
		if n > 25 {
			w.t.Errorf("want the run done after so many lives")
			return outcome{}
		}
		t := newTerm(w, n)
		f := t.run()
		if w.t.Failed() {
			return outcome{}
		}
		if t.dead {
			w.note("life %d was killed", n)
			w.dir = t.left
			continue
		}
		w.note("life %d ended with %d: %s", n, f.Code, f.Reason)
		t.stoppedWell(f)
		w.verify()
		if f.Code == runner.ExitDone {
			return w.outcome()
		}
		if f.Code == runner.ExitHopeless && strings.Contains(f.Reason, "died of the same cause at the same work") {
			continue // two faults drawn by chance look like one that comes again; a person may still resume
		}
		asked := t.excuse[runner.ExitStopped] != ""
		if f.Code == runner.ExitFailed && asked && strings.Contains(f.Reason, "no drafter was left to save, before there was a checkpoint") {
			continue // the last drafter died while it stopped
		}
		if _, may := t.excuse[f.Code]; !may {
			w.t.Errorf("life %d ended with %d, %s; want one of %v", n, f.Code, f.Reason, t.excuse)
			return outcome{}
		}
	}
}

// verify proves the journal from its files.
func (w *world) verify() journal.Report {
	w.t.Helper()
	rep, err := journal.Verify(filepath.Join(w.dir, "journal"), journal.Facts{Index: w.s.index, Config: w.s.rows, BitIdentical: true})
	if err != nil {
		w.t.Errorf("I6: %v", err)
	}
	return rep
}

// outcome reads the journal and the checkpoints of a run that is done.
func (w *world) outcome() outcome {
	w.t.Helper()
	rep := w.verify()
	all := w.recorded()
	if len(all) == 0 || !rep.Ended {
		w.t.Errorf("want a checkpoint and an end, got %v, %+v", all, rep)
		return outcome{}
	}
	var last image.Facts
	for _, c := range all {
		f, err := image.Verify(filepath.Join(w.dir, c.Name))
		if err != nil {
			w.t.Error(err)
		}
		if f.Step >= last.Step {
			last = f
		}
	}
	if left, err := filepath.Glob(filepath.Join(w.dir, ".partial-*")); err != nil || len(left) > 0 {
		w.t.Errorf("want no half checkpoints left, got %v, %v", left, err)
	}
	if uint64(last.Step) != uint64(rep.Committed) {
		w.t.Errorf("want a checkpoint of step %d, got one of %d", rep.Committed, last.Step)
	}
	return outcome{Committed: uint64(rep.Committed), Rows: uint64(rep.Rows), Samples: uint64(rep.Samples), Skipped: uint64(rep.Skipped),
		Excluded: uint64(rep.Excluded), Epochs: uint32(rep.Epochs), Chain: last.Chain, Parameters: last.Parameters}
}

// recorded gives the checkpoints on the disk that the journal names. One whose
// rename came just before a kill has no record, and nobody knows of it.
func (w *world) recorded() []runner.CheckpointRecord {
	w.t.Helper()
	var v journal.Recover
	if _, err := journal.Scan(filepath.Join(w.dir, "journal"), v.Visit); err != nil {
		w.t.Error(err)
	}
	return w.there(v.State().Checkpoints)
}

// open goes on with the journal, or begins one, as `up` does.
func (w *world) open() (*journal.Writer, *core.Resume) {
	w.t.Helper()
	dir := filepath.Join(w.dir, "journal")
	if all, err := filepath.Glob(filepath.Join(dir, "*.journal")); err != nil || len(all) == 0 {
		j, err := journal.Create(dir, journal.RunID{1})
		if err != nil {
			w.t.Fatal(err)
		}
		return j, nil
	}
	if err := image.Sweep(w.dir); err != nil {
		w.t.Fatal(err)
	}
	var v journal.Recover
	any := false
	j, _, err := journal.Open(dir, func(e journal.Entry) error { any = true; return v.Visit(e) })
	if err != nil {
		w.t.Fatalf("open the journal again: %v", err)
	}
	if !any {
		return j, nil
	}
	s := v.State()
	return j, &core.Resume{Lineage: s.Lineage, Excluded: s.Excluded, Arranged: s.Arranged, Plans: s.Plans, Committed: s.Committed,
		Checkpoints: w.there(s.Checkpoints), Evaluations: s.Evaluations, Rows: s.Rows, Skipped: s.Skipped}
}

// there gives the checkpoints whose directories hold what the journal names.
func (w *world) there(all []runner.CheckpointRecord) (found []runner.CheckpointRecord) {
	newest := map[string]int{}
	for i, c := range all {
		newest[c.Name] = i
	}
	for i, c := range all {
		f, err := image.ReadFacts(filepath.Join(w.dir, c.Name))
		if newest[c.Name] == i && err == nil && f.Step == c.Step && f.Image == fmt.Sprintf("%x", c.Image) {
			found = append(found, c)
		}
	}
	return found
}
