package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// script is testdata/behaves.py as the plugin called which, with its file
// beside it; it borrows the workers' Python.
func script(t testing.TB, which string, o *Options) Entry {
	t.Helper()
	o.Python = pyenvtest.Ensure(t).Python
	e, err := Pin(filepath.Join("testdata", "behaves.py"), which)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := Pin(filepath.Join("testdata", "beside.py"))
	if err != nil {
		t.Fatal(err)
	}
	e.Name, e.Files = "good", []File{beside.Program}
	return e
}

func startedScript(t *testing.T, which string, o Options) *Plugin {
	t.Helper()
	p, err := Start(t.Context(), script(t, which, &o), o)
	if err != nil {
		t.Fatalf("start %s: %v", which, err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close %s: %v", which, err)
		}
		if left, _ := filepath.Glob(filepath.Join(o.Directory, "p-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return p
}

// TestPythonAnswersEverything: a script under the host's mutual TLS, from its
// private copy, with what it prints in its log.
func TestPythonAnswersEverything(t *testing.T) {
	o := options(t)
	p := startedScript(t, "prints-first", o)
	if got, err := p.Arrange(t.Context(), ask()); err != nil || !slices.Equal(got, []runner.Sample{12, 11, 10}) {
		t.Errorf("arrange: got %v, %v", got, err)
	}
	free := []runner.Worker{{Role: runner.Target}, {Role: runner.Target, Rank: 1}}
	if w, err := p.Assign(t.Context(), scheduler.AssignRequest{Row: 1, Free: free}); err != nil || w != free[1] {
		t.Errorf("assign: got %v, %v", w, err)
	}
	place := scheduler.PlaceRequest{Devices: []scheduler.Device{{ID: "a", FreeBytes: 10}, {ID: "b", FreeBytes: 10, Links: []scheduler.Link{{ID: "a", Peer: true}}}},
		Needs: []scheduler.Need{{Worker: free[0], MemoryBytes: 5}, {Worker: free[1], MemoryBytes: 5}}}
	if out, err := p.Place(t.Context(), place); err != nil || len(out) != 2 || out[1].Device != "b" {
		t.Errorf("place: got %v, %v", out, err)
	}
	if v, err := p.OnFailure(t.Context(), scheduler.FailureRequest{Worker: free[0], Device: "a", Cause: runner.CauseKilled, Deaths: 1, Budget: 3}); err != nil ||
		v != (scheduler.Verdict{Decision: scheduler.Restart, Reason: "as ever"}) {
		t.Errorf("on failure: got %v, %v", v, err)
	}
	p.Observe(scheduler.Event{Number: 1, At: time.Now(), Name: "step decided", Worker: &free[0]})
	p.Observe(scheduler.Event{Number: 2, At: time.Now(), Name: "worker died"})
	text := awaitLog(t, o, "observed 2 worker died")
	if first := strings.Index(text, "observed 1 step decided"); first < 0 || first > strings.Index(text, "observed 2 worker died") || !strings.Contains(text, "FancyScheduler") {
		t.Errorf("log %q", text)
	}
	s := p.State()
	if s.Name != "good" || s.Version != "1.2.3" || s.APIVersion != 1 || len(s.Capabilities) != 5 || s.Calls != 4 || s.Refused != 0 {
		t.Errorf("state %+v", s)
	}
}

// TestPythonRefusedAtStart: each gives one clear line and leaves nothing behind.
func TestPythonRefusedAtStart(t *testing.T) {
	for _, c := range []struct {
		which  string
		spoil  func(t *testing.T, e *Entry, o *Options)
		says   string
		hinted bool
	}{
		{which: "no-plugin", says: `ended before its handshake, with exit code 0; its last line: "usage: none`, hinted: true},
		{which: "fails", says: `ended before its handshake, with exit code 1; its last line: "RuntimeError: no licence found"`, hinted: true},
		{which: "hang-info", spoil: func(_ *testing.T, _ *Entry, o *Options) { o.Call = 300 * time.Millisecond }, says: "info: no answer within 300ms"},
		{which: "misnamed", says: `info: name: want good, got "Not A Name"`},
		{which: "wordless", says: "info: want an Info with two texts, got 'good'"},
		{which: "bad-default", says: "schema key depth: default 'x' (str) is no int"},
		{which: "refuses", says: "depth 4 does not go with mode a", hinted: true},
		{which: "exits-in-configure", says: `it ended unasked, with exit code 1; its last line: "no licence found"`},
		{which: "shows-another", says: "certificate: want the one that the host made for it, got another", hinted: true},
		{which: "no interpreter", spoil: func(_ *testing.T, _ *Entry, o *Options) { o.Python = "" }, says: "want an interpreter", hinted: true},
		{which: "another interpreter", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Interpreter.SHA256 = strings.Repeat("0", 64) }, says: "want sha256 0000", hinted: true},
		{which: "no file beside", spoil: func(_ *testing.T, e *Entry, _ *Options) { e.Files = nil }, says: "No module named 'beside'", hinted: true},
		{which: "a changed SDK", spoil: func(t *testing.T, _ *Entry, o *Options) {
			o.Staged = func(code string) {
				at := filepath.Join(code, "dflash_runner", "scheduler", "serving.py")
				if err := errors.Join(os.Chmod(at, 0o600), os.WriteFile(at, []byte("import evil\n"), 0o600)); err != nil {
					t.Error(err)
				}
			}
		}, says: "serving.py changed between its check and its start"},
	} {
		t.Run(c.which, func(t *testing.T) {
			o := options(t)
			e := script(t, c.which, &o)
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

// TestPythonBadAnswers: each is refused with its reason, and a strike.
func TestPythonBadAnswers(t *testing.T) {
	for which, says := range map[string]string{
		"million":    "want 3 samples, got 1000000",
		"duplicates": "stands there again",
		"invents":    "sample 4000000 is not in the pool",
		"texts":      "arrange: place 1: want a sample's number, got str '12'",
		"none":       "arrange: want a list of samples, got NoneType None",
		"negative":   "arrange: place 2: want a sample's number, got int -1",
		"errs":       "no samples for the moment",
		"raises":     "KeyError: 'loss'",
		"late":       "no answer within 300ms",
	} {
		t.Run(which, func(t *testing.T) {
			o := options(t)
			p := startedScript(t, which, o)
			if says == "no answer within 300ms" {
				p.o.Call = 300 * time.Millisecond
			}
			_, err := p.Arrange(t.Context(), ask())
			s := p.State()
			if err == nil || !strings.Contains(err.Error(), says) || s.Refused != 1 || s.Strikes != 1 || s.State != Running {
				t.Errorf("got %v, state %+v", err, s)
			}
			switch which {
			case "errs":
				if runner.KindOf(err) != runner.Exhausted || runner.HintOf(err) != "wait" {
					t.Errorf("got kind %v, hint %q", runner.KindOf(err), runner.HintOf(err))
				}
			case "raises":
				awaitLog(t, o, "KeyError: 'loss'") // with its traceback
			case "late":
				awaitLog(t, o, "the deadline was seen")
			}
		})
	}
}

// TestPythonDeathIsQuarantine: a script that dies under a question.
func TestPythonDeathIsQuarantine(t *testing.T) {
	o := options(t)
	ended := make(chan State, 64)
	o.Changed = func(s State) { ended <- s }
	p := startedScript(t, "dies", o)
	if _, err := p.Arrange(t.Context(), ask()); err == nil {
		t.Fatal("got an answer of a dead plugin")
	}
	for s := range ended {
		if s.State == Quarantined {
			break
		}
	}
	if _, err := p.Arrange(context.Background(), ask()); !errors.Is(err, ErrAbsent) {
		t.Errorf("got %v", err)
	}
}

// TestPythonSeesNothingOfTheHost: neither its variables nor its files, and the
// SDK alone of the package.
func TestPythonSeesNothingOfTheHost(t *testing.T) {
	o := options(t)
	o.Environ = []string{"LANG=C.UTF-8", "TOKEN=x", "PYTHONPATH=/nowhere"}
	e := script(t, "reveals", &o)
	e.Env = []string{"LANG", "PYTHONPATH"}
	p, err := Start(t.Context(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	text := awaitLog(t, o, "imports from ")
	_, said, _ := strings.Cut(text, "revealed ")
	said, paths, _ := strings.Cut(said, "imports from ")
	for _, word := range strings.Fields(said) {
		switch {
		case slices.Contains([]string{"LANG", "PYTHONPATH", "DFLASH_NONCE", "DFLASH_RUNNER_SCHEDULER", "GRPC_ENABLE_FORK_SUPPORT"}, word), strings.HasPrefix(word, "PLUGIN_"):
		case strings.HasPrefix(word, "pipe:"), strings.HasPrefix(word, "socket:"), strings.HasPrefix(word, "anon_inode:"), word == "/dev/null":
		default:
			t.Errorf("it sees %q", word)
		}
	}
	if strings.Contains(paths, "/nowhere") || !strings.Contains(paths, o.Directory) {
		t.Errorf("it imports from %q", paths)
	}
	all, err := filepath.Glob(filepath.Join(o.Directory, "p-*", "code", "dflash_runner", "*"))
	if err != nil || len(all) != 2 {
		t.Errorf("staged %v, %v", all, err)
	}
}
