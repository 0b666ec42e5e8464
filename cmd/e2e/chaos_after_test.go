package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Bounds of a supervisor, whatever befalls its run: twice the descriptors and
// four times the memory (the race detector's is more) of an undisturbed one.
const (
	maxDescriptors = 40 // a worker
	maxResident    = 128 << 20
)

// figures are what a supervisor held at its most.
type figures struct {
	descriptors int
	resident    int64
}

func (f *figures) raise(g figures) {
	f.descriptors, f.resident = max(f.descriptors, g.descriptors), max(f.resident, g.resident)
}

// gauge looks at a supervisor while it lives.
type gauge struct {
	h    *home
	run  string
	r    *running
	most figures
}

func (w *gauge) look() {
	proc := fmt.Sprintf("/proc/%d", w.r.cmd.Process.Pid)
	if w.r.ended() {
		return
	}
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return // it is ending
	}
	var size, resident int64
	b, err := os.ReadFile(filepath.Join(proc, "statm"))
	if err != nil {
		return
	}
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return // a zombie's is empty
	}
	w.most.raise(figures{len(fds), resident * int64(os.Getpagesize())})
}

// check holds a run that is done against the undisturbed one.
func (c *chaos) check(t *testing.T, s *strikes) {
	t.Helper()
	h := s.h
	h.must(0, "journal", "verify", s.run)
	h.must(0, "checkpoints", "verify", s.run)
	parameters := newestParameters(t, h, s.run, c.steps)
	if s.any {
		if last := survivors(t, h.journal(s.run)).last; last != c.steps {
			t.Errorf("want %d steps, got %d", c.steps, last)
		}
	} else {
		survivors(t, h.journal(s.run)).equal(t, c.reference.history, c.steps)
		c.reference.sameSummary(t, summaryOf(t, h, s.run))
		if parameters != c.digest {
			t.Errorf("want parameters %s, got %s", c.digest, parameters)
		}
		if read(t, h.path(s.run, "export", "model.safetensors")) != c.reference.export {
			t.Error("the export differs from the undisturbed run's")
		}
	}
	for _, e := range named(h.events(s.run), "worker died") {
		if e.Failure == nil || e.Failure.Message == "" || e.Failure.Hint == "" {
			t.Errorf("want a report with message and hint of each death, got %+v", e)
			continue
		}
		c.deaths[string(e.Failure.Cause)]++
	}
	s.countPlugin()
	if most := maxDescriptors * (s.targets + c.drafters); s.most.descriptors > most || s.most.resident > maxResident {
		t.Errorf("want a supervisor of at most %d descriptors and %d MB, got %d and %d", most, maxResident>>20, s.most.descriptors, s.most.resident>>20)
	}
	h.clean(t, s.run)
}

// clean wants nothing left of a run but its directory; what supervisors left
// that were killed is for gc to find.
func (h *home) clean(t *testing.T, run string) {
	t.Helper()
	if left := h.left(5 * time.Second); len(left) > 0 {
		t.Errorf("processes outlive their run: %v", left)
	}
	if left := partials(h, run); len(left) > 0 {
		t.Errorf("want no half checkpoints, got %v", left)
	}
	h.must(0, "gc")
	places := []string{filepath.Join(h.dir, "tmp")} // communicators/ is emptied at each start
	if os.Getenv(insideVariable) != "" {
		places = append(places, "/dev/shm")
	}
	for _, entry := range h.env {
		if dir, ok := strings.CutPrefix(entry, "XDG_RUNTIME_DIR="); ok {
			places = append(places, dir)
		}
	}
	for _, dir := range places {
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("want nothing left in %s, got %v", dir, left)
		}
	}
	err := filepath.WalkDir(h.path(run), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			t.Errorf("want no socket left, got %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// files lists what is no directory under dir.
func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	return all
}

// newestParameters gives the digest of the parameters in the last checkpoint.
func newestParameters(t *testing.T, h *home, run string, steps int) string {
	t.Helper()
	var facts struct {
		Step       int
		Parameters string
	}
	if err := json.Unmarshal([]byte(read(t, h.path(run, "checkpoints", fmt.Sprintf("step-%d", steps), "checkpoint.json"))), &facts); err != nil {
		t.Fatal(err)
	}
	if facts.Step != steps || facts.Parameters == "" {
		t.Fatalf("want the parameters of step %d, got %+v", steps, facts)
	}
	return facts.Parameters
}

// print tells what was done.
func (c *chaos) print(t *testing.T) {
	t.Helper()
	t.Logf("%d histories, %d lives of supervisors; at most %d descriptors, %d MB", c.histories, c.lives, c.most.descriptors, c.most.resident>>20)
	for title, table := range map[string]map[string]int{"strikes, and what plugins did": c.tally, "workers at strikes": c.states, "deaths by cause": c.deaths} {
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(table)) {
			fmt.Fprintf(&b, "\n%6d  %s", table[k], k)
		}
		t.Logf("%s:%s", title, b.String())
	}
}
