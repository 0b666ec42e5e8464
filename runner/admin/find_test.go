package admin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestFind(t *testing.T) {
	root := t.TempDir()
	if _, err := Find(root, ""); runner.KindOf(err) != runner.NotFound || runner.HintOf(err) == "" {
		t.Errorf("no run: got %v", err)
	}
	if _, err := Find(filepath.Join(root, "missing"), ""); runner.KindOf(err) != runner.NotFound {
		t.Errorf("no directory: got %v", err)
	}
	for i, name := range []string{"old", "new"} {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := WriteStatus(dir, live(t)); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(filepath.Join(dir, StatusFile), at, at); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"": "new", "old": "old", filepath.Join(root, "old"): "old"} {
		if got, err := Find(root, name); err != nil || filepath.Base(got) != want {
			t.Errorf("%q: want %s, got %s, %v", name, want, got, err)
		}
	}
	if _, err := Find(root, "odl"); runner.HintOf(err) != "known runs: new, old" {
		t.Errorf("hint: got %q", runner.HintOf(err))
	}
}

func TestOpenWithoutAnswer(t *testing.T) {
	lost, ended := live(t), live(t)
	lost.Process.StartTicks++
	exit := 0
	ended.State, ended.Exit = Ended, &exit
	for name, c := range map[string]struct {
		status Status
		state  State
		note   string
	}{
		"over":   {ended, Ended, "the run is over"},
		"killed": {lost, Lost, "the run's process is gone"},
		"silent": {live(t), Training, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := WriteStatus(dir, c.status); err != nil {
				t.Fatal(err)
			}
			shot, err := Open(t.Context(), dir)
			if err != nil || shot.State != c.state || shot.Client != nil || !strings.Contains(shot.Note, c.note) {
				t.Errorf("got %+v, %v", shot, err)
			}
		})
	}
	if _, err := Open(t.Context(), t.TempDir()); runner.KindOf(err) != runner.NotFound {
		t.Errorf("nothing there: got %v", err)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	read := func(ctx context.Context, skip uint64, follow bool, each func(string)) (lines []string) {
		for line, err := range Tail(ctx, path, skip, follow, nil) {
			if err != nil {
				return append(lines, "error")
			}
			lines = append(lines, string(line))
			if each != nil {
				each(string(line))
			}
		}
		return lines
	}
	if got := read(t.Context(), 0, false, nil); len(got) != 1 || got[0] != "error" {
		t.Errorf("missing file: got %v", got)
	}
	add := func(text string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	add("one\ntwo\nthr")
	if got := strings.Join(read(t.Context(), 1, false, nil), "|"); got != "two|thr" {
		t.Errorf("got %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := read(ctx, 0, true, func(line string) { // each line lets the next part be written
		switch line {
		case "two":
			add("ee\n")
		case "three":
			cancel()
		}
	})
	if strings.Join(got, "|") != "one|two|three" {
		t.Errorf("followed: got %v", got)
	}
	add(strings.Repeat("x", maxLine+7))
	if got := read(t.Context(), 3, false, nil); len(got) != 1 || len(got[0]) > maxLine+20 || !strings.HasSuffix(got[0], " [7 bytes cut]") {
		t.Errorf("long line: got %d lines", len(got))
	}
}
