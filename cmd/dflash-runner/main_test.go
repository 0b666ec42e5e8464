package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"dflash-runner": main,
		"live-run":      func() { os.Exit(liveRun(os.Args[1])) },
	})
}

// TestScripts runs every command line in testdata/script against the real
// binary, each in an empty directory with a cache of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("XDG_RUNTIME_DIR", filepath.Join(e.WorkDir, "r"))
			e.Setenv("CI", "")
			return os.Mkdir(filepath.Join(e.WorkDir, "r"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "wait4file": waitForFile, "dead": dead},
	})
}

// exits runs a program and wants an exit code: exits CODE PROGRAM ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := "0"
	if err != nil {
		code = fmt.Sprint(err)
		var n int
		if _, scanErr := fmt.Sscanf(err.Error(), "exit status %d", &n); scanErr == nil {
			code = fmt.Sprint(n)
		}
	}
	if code != args[0] {
		ts.Fatalf("want exit code %s, got %s", args[0], code)
	}
}

// waitForFile waits until a file is there.
func waitForFile(ts *testscript.TestScript, _ bool, args []string) {
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("no %s", args[0])
		}
	}
}

// dead writes the status.json of a run that was killed: dead DIRECTORY STEP.
func dead(ts *testscript.TestScript, _ bool, args []string) {
	self, err := admin.Self()
	ts.Check(err)
	self.StartTicks++ // the pid was used again
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	var step runner.Step
	_, err = fmt.Sscan(args[1], &step)
	ts.Check(err)
	ts.Check(admin.WriteStatus(dir, admin.Status{Name: filepath.Base(dir), State: admin.Training, Step: step, Process: self}))
}

// liveRun answers on a run's socket as a supervisor does, until it is asked to
// end.
func liveRun(dir string) int {
	r := &live{dir: dir, asked: make(chan admin.Mode, 1)}
	self, err := admin.Self()
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "logs"), 0o700)
	}
	l, listenErr := admin.Listen(dir)
	if err != nil || listenErr != nil {
		fmt.Fprintln(os.Stderr, err, listenErr)
		return 1
	}
	r.status = admin.Status{Name: filepath.Base(dir), State: admin.Training, Step: 7, StepsTotal: 9, UpdatedAt: time.Now(), Process: self,
		Workers: []admin.WorkerStatus{{Name: runner.Worker{Role: runner.Target}, Role: runner.Target, State: "ready", Generation: 1}}}
	if err := admin.WriteStatus(dir, r.status); err != nil {
		return 1
	}
	s := admin.NewServer(r)
	go func() { _ = s.Serve(l) }() // ends with Shutdown
	mode := <-r.asked
	exit := map[admin.Mode]int{admin.Graceful: runner.ExitStopped, admin.Quick: runner.ExitFailed}[mode]
	r.mu.Lock()
	r.status.State, r.status.Exit = admin.Ended, &exit
	ended := r.status
	r.mu.Unlock()
	_ = admin.WriteStatus(dir, ended)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = s.Shutdown(ctx)
	return 0
}

type live struct {
	dir   string
	asked chan admin.Mode

	mu     sync.Mutex // guards status
	status admin.Status
}

func (r *live) Status() admin.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

func (r *live) Stop(m admin.Mode) error { r.asked <- m; return nil }
func (r *live) Checkpoint() error       { return nil }
func (r *live) Metrics() http.Handler   { return http.NotFoundHandler() }
func (r *live) Events(context.Context, uint64, bool) iter.Seq[[]byte] {
	return func(func([]byte) bool) {}
}

// TestHelp: every command says what it does and gives an example.
func TestHelp(t *testing.T) {
	var walk func(path string, of *testCommand)
	seen := 0
	walk = func(path string, of *testCommand) {
		seen++
		if of.Short == "" {
			t.Errorf("%s: no short text", path)
		}
		if of.Example == "" {
			t.Errorf("%s: no example", path)
		}
		for _, c := range of.Children {
			walk(path+" "+c.Name, c)
		}
	}
	walk("dflash-runner", describeCommands(newCLI(os.Stdin, os.Stdout, os.Stderr).root()))
	if seen < 12 {
		t.Errorf("walked %d commands", seen)
	}
}

// TestVersionIsJSON reads its own output's type.
func TestVersionIsJSON(t *testing.T) {
	text, err := json.Marshal(describe())
	if err != nil {
		t.Fatal(err)
	}
	var back about
	if err := json.Unmarshal(text, &back); err != nil || back.Go == "" || back.Lane != runner.LaneVersion {
		t.Errorf("got %s, %v", text, err)
	}
}
