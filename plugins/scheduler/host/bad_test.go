package host

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// TestRefusedAtStart: each gives one clear line, within its limit, and leaves
// nothing behind.
func TestRefusedAtStart(t *testing.T) {
	for _, c := range []struct {
		which  string
		spoil  func(t *testing.T, e *Entry, o *Options)
		says   string
		hinted bool
	}{
		{which: "none", says: `ended before its handshake, with exit code 0; its last line: "usage: none`, hinted: true},
		{which: "exits", says: `ended before its handshake, with exit code 3; its last line: "no licence found"`, hinted: true},
		{which: "silent", spoil: func(_ *testing.T, _ *Entry, o *Options) { o.Start = 300 * time.Millisecond }, says: "no handshake within 300ms", hinted: true},
		{which: "old-version", says: "protocol version: want 1, got 7", hinted: true},
		{which: "evil-address", says: "want a socket in the plugin's directory"},
		{which: "hang-info", spoil: func(_ *testing.T, _ *Entry, o *Options) { o.Call = 300 * time.Millisecond }, says: "info: no answer within 300ms"},
		{which: "ends-in-info", says: "it ended unasked, with exit code 6"},
		{which: "misnamed", says: `info: name: want good, got "Not A Name"`},
		{which: "painted", says: `info: version: want one line of at most 80 bytes, got 6: "1\x1b[31m"`},
		{which: "refuses", says: "depth 4 does not go with mode a", hinted: true},
		{which: "wrong sum", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Program.SHA256 = strings.Repeat("0", 64) }, says: "want sha256 0000", hinted: true},
		{which: "no sum", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Program.SHA256 = "" }, says: "want its sha256", hinted: true},
		{which: "changed", spoil: func(t *testing.T, _ *Entry, o *Options) {
			o.Staged = func(code string) {
				all, _ := filepath.Glob(filepath.Join(code, "*"))
				if err := errors.Join(os.Chmod(all[0], 0o700), os.WriteFile(all[0], []byte("#!/bin/sh\n"), 0o700)); err != nil {
					t.Error(err)
				}
			}
		}, says: "changed between its check and its start"},
		{which: "no program", spoil: func(t *testing.T, e *Entry, _ *Options) { *e = file(t, "text", "hello\n", 0o600) }, says: "start plugin", hinted: true},
		{which: "anybody's file", spoil: func(t *testing.T, e *Entry, _ *Options) { *e = file(t, "text", "hello\n", 0o666) }, says: "want what only its owner may change, got ", hinted: true},
		{which: "a script of its own", spoil: func(t *testing.T, e *Entry, _ *Options) {
			*e = file(t, "script", "#!/usr/bin/env ruby\nputs 1\n", 0o700)
		}, says: `got a script that begins with "#!/usr/bin/env ruby"`, hinted: true},
		{which: "a directory", spoil: func(t *testing.T, e *Entry, _ *Options) { e.Program.Path = t.TempDir() }, says: "want a regular file"},
		{which: "a long directory", spoil: func(t *testing.T, _ *Entry, o *Options) {
			o.Directory = filepath.Join(o.Directory, strings.Repeat("d", 80))
			if err := os.Mkdir(o.Directory, 0o700); err != nil {
				t.Fatal(err)
			}
		}, says: "as a socket's path is short", hinted: true},
		{which: "a key too many", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Config = map[string]any{"dept": int64(1)} }, says: "dept: unknown key"},
		{which: "several mistakes", spoil: func(_ *testing.T, e *Entry, _ *Options) {
			e.Config = map[string]any{"dept": int64(1), "depth": int64(12), "mode": "c"}
		}, says: "dept: unknown key; depth: want at most 9, got 12; mode: want a or b, got \"c\""},
		{which: "a value of another type", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Config = map[string]any{"depth": "x"} }, says: "depth: want a whole number, got x"},
		{which: "a value out of bounds", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Config = map[string]any{"depth": int64(12)} }, says: "depth: want at most 9, got 12"},
		{which: "a word out of its set", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Config = map[string]any{"mode": "c"} }, says: "mode: want a or b"},
	} {
		t.Run(c.which, func(t *testing.T) {
			e, o := entry(t, c.which), options(t)
			if c.spoil != nil {
				c.spoil(t, &e, &o)
			}
			p, err := Start(t.Context(), e, o)
			if err == nil {
				_ = p.Close()
				t.Fatal("it was taken")
			}
			if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") || (runner.HintOf(err) != "") != c.hinted {
				t.Errorf("got %q, hint %q", err, runner.HintOf(err))
			}
			if left, _ := filepath.Glob(filepath.Join(o.Directory, "p-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestDescribeTellsADeath: as a start does.
func TestDescribeTellsADeath(t *testing.T) {
	o := options(t)
	if _, err := Describe(t.Context(), entry(t, "ends-in-info"), o); err == nil || !strings.Contains(err.Error(), "it ended unasked, with exit code 6") {
		t.Errorf("got %v", err)
	}
}

// file is an entry of a file made for the test.
func file(t *testing.T, name, text string, mode os.FileMode) Entry {
	t.Helper()
	path := filepath.Join(short(t), name)
	if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	sum, err := Sum(path)
	if err != nil {
		t.Fatal(err)
	}
	return Entry{Name: "good", Program: File{path, sum}}
}

// TestAnybodysDirectory: who may write a directory may put another file there.
func TestAnybodysDirectory(t *testing.T) {
	e := file(t, "plugin", "hello\n", 0o700)
	if err := Verify(e); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(e.Program.Path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Verify(e); err == nil || !strings.Contains(err.Error(), "only its owner may change") {
		t.Errorf("got %v", err)
	}
}

// TestBadAnswers: each is refused with its reason, counted, and a strike.
func TestBadAnswers(t *testing.T) {
	for which, says := range map[string]string{
		"million":    "want 3 samples, got 1000000",
		"huge":       "larger than max",
		"duplicates": "stands there again",
		"drops":      "want 3 samples, got 2",
		"invents":    "sample 4000000 is not in the pool",
		"late":       "no answer within 300ms",
		"drowns":     "arrange: no answer within 2s while it flooded its log",
		"errs":       "no samples for the moment",
	} {
		t.Run(which, func(t *testing.T) {
			o := options(t)
			p := started(t, which, o)
			switch which {
			case "late":
				p.o.Call = 300 * time.Millisecond
			case "drowns":
				p.o.Call = 2 * time.Second
			}
			_, err := p.Arrange(t.Context(), ask())
			s := p.State()
			if err == nil || !strings.Contains(err.Error(), says) || s.Calls != 1 || s.Refused != 1 || s.Strikes != 1 || s.State != Running || !strings.Contains(s.Last, says) || strings.Contains(s.Last, "flooded") != (which == "drowns") {
				t.Errorf("got %v, state %+v", err, s)
			}
		})
	}
	t.Run("dead-target", func(t *testing.T) {
		p := started(t, "dead-target", options(t))
		free := []runner.Worker{{Role: runner.Target}, {Role: runner.Target, Rank: 1}}
		if _, err := p.Assign(t.Context(), scheduler.AssignRequest{Row: 9, Free: free}); err == nil || !strings.Contains(err.Error(), `row 9: want one of [target/0 target/1], got "target"/7`) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("pairs", func(t *testing.T) {
		p := started(t, "pairs", options(t))
		q := scheduler.PlaceRequest{Devices: []scheduler.Device{{ID: "a", FreeBytes: 1}}, Needs: []scheduler.Need{{Worker: runner.Worker{Role: runner.Target}}}}
		if _, err := p.Place(t.Context(), q); err == nil || !strings.Contains(err.Error(), "want 1 placements, got 1000000") {
			t.Errorf("got %v", err)
		}
	})
}

// TestStrikesQuarantine: three bad answers in a row end the plugin; it is
// absent until its wait is over, then started from files that are checked anew.
func TestStrikesQuarantine(t *testing.T) {
	states := make(chan State, 64)
	o := options(t)
	o.Backoff = Backoff{50 * time.Millisecond, time.Second}
	o.Changed = func(s State) { states <- s }
	p := started(t, "drops", o)
	for range 3 {
		if _, err := p.Arrange(t.Context(), ask()); err == nil || errors.Is(err, ErrAbsent) {
			t.Fatalf("got %v", err)
		}
	}
	s := p.State()
	if s.State != Quarantined || s.Pid != 0 || s.Refused != 3 || s.Ends != 1 || s.Until.IsZero() {
		t.Errorf("got %+v", s)
	}
	for until := time.After(time.Minute); s.State != Running || s.Starts != 2; {
		if _, err := p.Arrange(t.Context(), ask()); err != nil && !errors.Is(err, ErrAbsent) && s.Starts != 2 && p.State().Starts != 2 {
			t.Fatalf("asked while it was away: %v", err)
		}
		select {
		case s = <-states:
		case <-time.After(10 * time.Millisecond): // ask again: a start begins when somebody asks
		case <-until:
			t.Fatalf("it did not come back: %+v", p.State())
		}
	}
}

// TestDeathIsQuarantine: a plugin that dies is absent, and how it died is told,
// also where a strike ended it first.
func TestDeathIsQuarantine(t *testing.T) {
	for name, c := range map[string]struct {
		strikes int
		die     func(*Plugin)
		says    string
	}{
		"under a question": {3, func(p *Plugin) { _, _ = p.Arrange(t.Context(), ask()) }, "it ended unasked, with exit code 4"},
		"at a strike":      {1, func(p *Plugin) { _, _ = p.Arrange(t.Context(), ask()) }, "it ended unasked, with exit code 4"},
		"by a signal":      {3, func(p *Plugin) { _ = syscall.Kill(p.State().Pid, syscall.SIGKILL) }, "it ended unasked, by SIGKILL"},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan State, 64)
			o := options(t)
			o.Strikes, o.Changed = c.strikes, func(s State) { gone <- s }
			p := started(t, "dies", o)
			c.die(p)
			said, until := "", time.After(time.Minute)
			for !strings.Contains(said, c.says) {
				select {
				case s := <-gone:
					if s.State == Quarantined {
						said = s.Last
					}
				case <-until:
					t.Fatalf("got %q", said)
				}
			}
			if _, err := p.Arrange(t.Context(), ask()); !errors.Is(err, ErrAbsent) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestFloodedLog: 70 MB of stderr cost a bounded file, and no answer.
func TestFloodedLog(t *testing.T) {
	o := options(t)
	p := started(t, "floods", o)
	if _, err := p.Arrange(t.Context(), ask()); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(o.LogPath(1))
	if err != nil || info.Size() < logLimit/2 || info.Size() > logLimit+200 {
		t.Errorf("log: %v, %v", info.Size(), err)
	}
}

// TestCanceledIsNoStrike: who asks may give up.
func TestCanceledIsNoStrike(t *testing.T) {
	p := started(t, "late", options(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Arrange(ctx, ask()); runner.KindOf(err) != runner.Canceled || p.State().Strikes != 0 {
		t.Errorf("got %v, %+v", err, p.State())
	}
}

func readLog(t *testing.T, o Options) string {
	t.Helper()
	b, err := os.ReadFile(o.LogPath(1))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(b))
}
