package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"dflash-runner": main,
		"live-run":      func() { os.Exit(liveRun(os.Args[1])) },
		"test-plugin":   func() { scheduler.Serve(testPlugin{}) },
		"hangs":         func() { hang(os.Args[1]) },
		"placing":       func() { scheduler.Serve(placing{}) },
		"wrong":         func() { scheduler.Serve(wrong{}) },
	})
}

// TestScripts runs every command line in testdata/script against the real
// binary, each in an empty directory with a cache of its own.
func TestScripts(t *testing.T) {
	kept := map[string]string{} // Go's caches, for scripts that build
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
		out, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		kept[name] = strings.TrimSpace(string(out))
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("XDG_RUNTIME_DIR", filepath.Join(e.WorkDir, "r"))
			e.Setenv("CI", "")
			for name, value := range kept {
				e.Setenv("KEPT_"+name, value)
			}
			return os.Mkdir(filepath.Join(e.WorkDir, "r"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "wait4file": waitForFile, "dead": dead, "publish": publish, "record": record, "linked": linked, "self": self, "changed": changed},
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

// publish makes a checkpoint: publish RUN-DIRECTORY STEP.
func publish(ts *testscript.TestScript, _ bool, args []string) {
	var step runner.Step
	_, err := fmt.Sscan(args[1], &step)
	ts.Check(err)
	text := imageText(step)
	ts.Check(os.WriteFile(ts.MkAbs("image"), []byte(text), 0o600))
	f, err := os.Open(ts.MkAbs("image"))
	ts.Check(err)
	defer func() { _ = f.Close() }()
	dir := filepath.Join(ts.MkAbs(args[0]), "checkpoints")
	ts.Check(os.MkdirAll(dir, 0o700))
	sum := sha256.Sum256([]byte(text))
	zeros := strings.Repeat("0", 64)
	_, err = image.Publish(dir, f, image.Facts{Step: step, Lineage: 1, Chain: zeros, Image: hex.EncodeToString(sum[:]), Parameters: zeros,
		Bytes: uint64(len(text)), Written: "2026-11-30T00:00:00Z"}, image.Disk{})
	ts.Check(err)
}

// imageText is the smallest image of a step: one tensor of 1,024 floats.
func imageText(step runner.Step) string {
	zeros := strings.Repeat("0", 64)
	head := fmt.Sprintf(`{"__metadata__":{"format":%q,"step":"%d","chain":%q,"parameters":%q},"a":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}}`,
		image.Format, step, zeros, zeros)
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(head)))) + head + strings.Repeat("x", 4096)
}

// linked makes a file with a second name elsewhere: linked FILE OTHER MIB.
func linked(ts *testscript.TestScript, _ bool, args []string) {
	var size int
	_, err := fmt.Sscan(args[2], &size)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), bytes.Repeat([]byte("x"), size<<20), 0o600))
	ts.Check(os.Link(ts.MkAbs(args[0]), ts.MkAbs(args[1])))
}

// record writes a journal of two records: record RUN-DIRECTORY.
func record(ts *testscript.TestScript, _ bool, args []string) {
	dir := filepath.Join(ts.MkAbs(args[0]), "journal")
	ts.Check(os.MkdirAll(dir, 0o700))
	w, err := journal.Create(dir, journal.RunID{1})
	ts.Check(err)
	ts.Check(w.Append(runner.StartRecord{Manifest: runner.Digest{0xab}}))
	ts.Check(w.Append(runner.EvaluationRecord{What: "decode", BusyUS: 7, NonLoopingTokens: 3}))
	ts.Check(w.Close())
}

// liveRun answers on a run's socket as a supervisor does, until it is asked to
// end.
func liveRun(dir string) int {
	r := &live{dir: dir, asked: make(chan admin.Mode, 1)}
	self, err := admin.Self()
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "logs"), 0o700)
	}
	if err == nil {
		var release func() error
		if _, release, err = admin.OwnedDirectory(""); err == nil {
			defer func() { _ = release() }()
		}
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

// testPlugin is this binary as a scheduling plugin.
type testPlugin struct{ scheduler.Base }

func (testPlugin) Info() scheduler.Info {
	return scheduler.Info{Name: "test-plugin", Version: "2.1.0"}
}

func (testPlugin) Schema() []scheduler.Field {
	return []scheduler.Field{{Key: "depth", Type: scheduler.Int, Default: 3, Doc: "how deep"}}
}

func (testPlugin) Configure(context.Context, scheduler.Config) error { return nil }

func (testPlugin) Arrange(_ context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	return scheduler.First(q), nil
}

// self copies this binary and writes a catalog that names it: self PROGRAM FILE.
func self(ts *testscript.TestScript, _ bool, args []string) {
	own, err := os.Executable()
	ts.Check(err)
	text, err := os.ReadFile(own)
	ts.Check(err)
	path := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(path, text, 0o700))
	sum, err := host.Sum(path)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte("version: 1\ndata: {regenerate: {samples: 64}}\ntraining: {steps: 4, buckets: [160], anchors: 20, rows_per_step: 4}\ndrafter: {layers: 2, captured_layers: 3}\nscheduler:\n  use: "+filepath.Base(path)+"\n  plugins:\n    - name: "+filepath.Base(path)+"\n      path: "+
		args[0]+"\n      sha256: "+sum+"\n"), 0o600))
}

// changed adds a byte to a program: changed FILE.
func changed(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_APPEND|os.O_WRONLY, 0)
	ts.Check(err)
	_, err = f.WriteString("x")
	ts.Check(err)
	ts.Check(f.Close())
}
