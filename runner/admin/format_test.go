package admin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestFormat1 reads a status and a summary that a run of an earlier version
// wrote. They are never written anew. These files have no version: fields are
// only added, so an older reader passes over what it does not know, and a newer
// one finds figures null that were never written.
func TestFormat1(t *testing.T) {
	const dir = "testdata/format1"
	s, err := ReadStatus(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "merged" || s.State != Ended || s.Step != 400 || s.Exit == nil || *s.Exit != 0 || len(s.Workers) != 3 || s.Workers[1].Certificate.Buckets[0] != 288 ||
		s.Loss == nil || *s.Loss < 0.485 || len(s.Stages) == 0 || s.ImageStall.Share != nil {
		t.Errorf("status %+v", s)
	}
	if h := Judge(s, s.UpdatedAt); h.Status != Critical { // it does not run
		t.Errorf("health %+v", h)
	}
	e, err := ReadSummary(dir)
	if err != nil {
		t.Fatal(err)
	}
	if e.Steps != 400 || e.Rows != 1600 || e.AcceptanceAfter == nil || *e.AcceptanceAfter < 4.8 || e.Lossless == nil || !*e.Lossless || e.Arenas[0].HandOffs != 1600 || e.ImageStall.Share != nil {
		t.Errorf("summary %+v", e)
	}
}

// TestLaterFields: what a later version adds is passed over; what is no status
// at all is refused with the file's name.
func TestLaterFields(t *testing.T) {
	b, err := os.ReadFile("testdata/format1/status.json")
	if err != nil {
		t.Fatal(err)
	}
	for text, ok := range map[string]bool{
		strings.Replace(string(b), `"name": "merged"`, `"name": "merged", "moons": [{"phase": 3}]`, 1): true,
		strings.Replace(string(b), `"step": 400`, `"step": "four hundred"`, 1):                         false,
		string(b[:len(b)/2]): false,
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, StatusFile)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := ReadStatus(dir)
		if ok && (err != nil || s.Step != 400) {
			t.Errorf("a field more: got step %d, %v", s.Step, err)
		}
		if !ok && (runner.KindOf(err) != runner.Invalid || err == nil || !strings.Contains(err.Error(), path)) {
			t.Errorf("got %v, want kind invalid and %s", err, path)
		}
	}
}
