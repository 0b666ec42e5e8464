package up

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
)

// cutBefore cuts the journal before its last record that pick accepts, as a
// kill does that comes before it is written.
func cutBefore(t *testing.T, dir string, pick func(runner.Record) bool) {
	t.Helper()
	var at journal.Entry
	if _, err := journal.Scan(dir, func(e journal.Entry) error {
		if pick(e.Record) {
			at = e
		}
		return nil
	}); err != nil || at.Record == nil {
		t.Fatalf("no such record in %s: %v", dir, err)
	}
	if err := os.Truncate(filepath.Join(dir, filepath.Base(at.File)), at.Offset); err != nil {
		t.Fatal(err)
	}
}

// TestResumeAfterAKillAtARename: the checkpoint that the journal does not name is
// gone on with, nothing is trained again, and what the killed supervisor left in
// the runtime directory goes.
func TestResumeAfterAKillAtARename(t *testing.T) {
	b := newBench(t)
	f, u := b.run("run", false, func(u *up) {
		if _, ok := atStep(u, 6); ok {
			u.stop(false, "signal terminated")
		}
	})
	if f.Code != runner.ExitStopped {
		t.Fatalf("finish %+v", f)
	}
	at := u.final.Step
	cutBefore(t, u.dir.join("journal"), func(r runner.Record) bool { c, ok := r.(runner.CheckpointRecord); return ok && c.Step == at })
	left := sockets(t, u.dir.path)
	f, u = b.run("run", true, nil)
	b.check(f, u) // the runtime directory is empty, the journal names what it must
	text, err := os.ReadFile(u.dir.join("events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"event":"checkpoint adopted","message":"` + image.Name(at) + " was published", `"event":"leftover removed","message":"` + left,
		`"message":"0 decided steps are trained again"`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no event says %s", want)
		}
	}
}

// sockets makes a directory of sockets as a supervisor leaves it that was killed
// in an earlier boot.
func sockets(t *testing.T, run string) (path string) {
	t.Helper()
	path, _, err := admin.OwnedDirectory(run)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(path, "owner.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var owner map[string]any
	if err := json.Unmarshal(text, &owner); err != nil {
		t.Fatal(err)
	}
	owner["boot_id"] = "another boot"
	if text, err = json.Marshal(owner); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
