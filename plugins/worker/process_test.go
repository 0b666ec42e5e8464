package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/plugins/worker/workertest"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

var life = runner.Life{Worker: runner.Worker{Role: runner.Drafter, Rank: 1}, Generation: 3}

// buffer is a log output that may be read while it is written.
type buffer struct {
	mu sync.Mutex // guards below
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.b.Write(p) }
func (b *buffer) String() string              { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

func launch(t *testing.T, which string, change func(*worker.Spec)) (*worker.Process, error) {
	t.Helper()
	spec := workertest.Spec(t, life, which)
	if change != nil {
		change(&spec)
	}
	return worker.Launch(t.Context(), spec)
}

// mustLaunch launches a worker that must come up, and ends it with the test.
func mustLaunch(t *testing.T, which string, change func(*worker.Spec)) *worker.Process {
	t.Helper()
	p, err := launch(t, which, change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Lane().Close()
		p.Kill(runner.CauseKilled, "end of the test", "")
		end(t, p)
	})
	return p
}

// end waits for the end and gives the report.
func end(t *testing.T, p *worker.Process) runner.Failure {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the worker's end was not reported within 10 s")
	}
	if alive(p.Pid()) {
		t.Errorf("pid %d is alive after Done", p.Pid())
	}
	return p.Report()
}

// alive reports whether pid is a process that runs: zombies do not count.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	return rest[0] != "Z" && rest[0] != "X"
}

func gone(t *testing.T, pid int, within time.Duration) {
	t.Helper()
	for until := time.Now().Add(within); alive(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			t.Fatalf("pid %d is alive after %v:\n%s", pid, within, status)
		}
	}
}

func TestGoodWorker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drafter-1.3.log")
	p := mustLaunch(t, "good", func(s *worker.Spec) { s.LogPath = path })
	if p.Description().GetTorch() == "" || p.Configured().GetParameters() != 1000 {
		t.Errorf("description %v, configured %v", p.Description(), p.Configured())
	}
	var seen []string
	c, err := p.WarmUp(t.Context(), func(w *workerv1.WarmUpProgress) { seen = append(seen, fmt.Sprint(w.Phase, w.Bucket)) })
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, " "); got != "first_pass128 first_pass256" {
		t.Errorf("progress: %s", got)
	}
	if _, err := worker.Check(c, workertest.Configuration(workerv1.Role_ROLE_DRAFTER, 1, 3), "cpu"); err != nil {
		t.Error(err)
	}
	p.SetLastOrder("train step 4 micro 1")
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := end(t, p)
	if f.Cause != "" || f.ExitCode != 0 || f.LastOrder != "train step 4 micro 1" || f.PeakBytes == 0 || f.ForcedBySelf {
		t.Errorf("report of a clean end: %+v", f)
	}
	if f.LastSignMS < 0 || f.LastSignMS > 5000 {
		t.Errorf("age of the last sign of life: %d ms", f.LastSignMS)
	}
}

// TestLane passes a packet both ways over fd 4, and tells an end that was asked
// for on the lane from one that was not.
func TestLane(t *testing.T) {
	for _, expected := range []bool{true, false} {
		p := mustLaunch(t, "lane", nil)
		if _, err := p.WarmUp(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		lane := p.Lane()
		if _, err := lane.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 64)
		n, err := lane.Read(answer)
		if err != nil || string(answer[:n]) != "echo hello" {
			t.Fatalf("lane: %q, %v", answer[:n], err)
		}
		if expected {
			p.ExpectExit()
		}
		lane.Close()
		want := runner.CauseExit
		if expected {
			want = ""
		}
		if f := end(t, p); f.Cause != want || f.ExitCode != 0 {
			t.Errorf("expected %v: cause %q, code %d", expected, f.Cause, f.ExitCode)
		}
	}
}

// TestMisbehavingStart: each trap of a start ends in one report, with nothing
// left behind (Spec's clean-up and goleak look).
func TestMisbehavingStart(t *testing.T) {
	// Each shortens only the wait that is to end: the others hold on a busy machine.
	silent := func(s *worker.Spec) { s.StartTimeout = 2 * time.Second }
	describe := func(s *worker.Spec) { s.DescribeTimeout = 700 * time.Millisecond }
	configure := func(s *worker.Spec) { s.ConfigureTimeout = 700 * time.Millisecond }
	for _, c := range []struct {
		which   string
		change  func(*worker.Spec)
		cause   runner.Cause
		message string // part of it
		hint    string // part of it
		dump    bool   // the stacks are in the report
	}{
		{"traceback", nil, runner.CausePython, "ModuleNotFoundError: No module named 'torch'", "environment is incomplete", true},
		{"exit-7", nil, runner.CauseExit, "ended with code 7 during handshake: out of luck", "log", false},
		{"exit-70", nil, runner.CauseProtocol, "a frame broke the lane's rules", "versions", false},
		{"old-version", nil, runner.CauseProtocol, "worker protocol version: want 1, got 2", "remake the environment", false},
		{"evil-address", nil, runner.CauseProtocol, "want a socket in", "", false},
		{"netrpc", nil, runner.CauseProtocol, "wire protocol: want grpc", "", false},
		{"impostor", nil, runner.CauseProtocol, "connect to worker: peer of", "", false},
		{"silent", silent, runner.CauseDeadline, "no answer to handshake within 2", "it showed no stacks", false},
		{"hang-describe", describe, runner.CauseDeadline, "no answer to describe within 7", "the stacks at that time", true},
		{"hang-configure", configure, runner.CauseDeadline, "no answer to configure within 7", "the stacks at that time", true},
		{"refuse", nil, runner.CausePython, "configure: build target: hidden size: want 64, got 32", "check the target directory", false},
		{"wrong-pid", nil, runner.CauseProtocol, "check description: pid", "", false},
		{"wrong-lane", nil, runner.CauseProtocol, "lane version: want 1, got 9", "remake", false},
		{"huge", nil, runner.CauseProtocol, "larger than max", "", false},
		{"good", func(s *worker.Spec) { s.Argv = []string{"/no/such/python"} }, runner.CauseLaunch, "never started", "doctor", false},
		{"good", func(s *worker.Spec) { s.Argv = nil }, runner.CauseLaunch, "command: want a program", "", false},
		{"good", func(s *worker.Spec) { s.Grace = 0 }, runner.CauseLaunch, "grace time", "", false},
		{"good", func(s *worker.Spec) { s.LogPath = "/no/such/folder/log" }, runner.CauseLaunch, "open worker log", "", false},
		{"good", func(s *worker.Spec) { s.RuntimeDir = "/tmp" }, runner.CauseLaunch, "mode 0700", "", false},
	} {
		t.Run(c.which, func(t *testing.T) {
			began := time.Now()
			_, err := launch(t, c.which, c.change)
			var failed *worker.LaunchError
			if !errors.As(err, &failed) {
				t.Fatalf("error: %v", err)
			}
			f := failed.Failure
			if f.Cause != c.cause || !strings.Contains(f.Message, c.message) || !strings.Contains(f.Hint, c.hint) {
				t.Errorf("cause %q, message %q, hint %q", f.Cause, f.Message, f.Hint)
			}
			if f.Worker != life.Worker || f.Generation != 3 || f.Role != runner.Drafter || f.Device != "cpu" || f.At.Before(began) {
				t.Errorf("identity: %+v", f)
			}
			if c.dump != (len(f.Traceback) > 0) {
				t.Errorf("traceback: %q", f.Traceback)
			}
			if !strings.Contains(err.Error(), "launch drafter/1.3: ") || runner.HintOf(err) != f.Hint {
				t.Errorf("error %q, hint %q", err, runner.HintOf(err))
			}
		})
	}
}

func TestStdoutNoise(t *testing.T) {
	p := mustLaunch(t, "banner", nil)
	p.Kill(runner.CauseKilled, "enough", "")
	f := end(t, p)
	if got := strings.Join(f.StdoutNoise, ";"); got != "Welcome to FancyLib 3.0;a|b|c|d|e;1|1|unix" {
		t.Errorf("noise: %q", got)
	}
	if f.Cause != runner.CauseKilled || f.Message != "enough" || !f.ForcedBySelf || f.Signal != "SIGKILL" {
		t.Errorf("report: %+v", f)
	}
}

func TestStdoutFlood(t *testing.T) {
	p := mustLaunch(t, "flood-out", nil) // Describe answers only once all was taken
	p.Kill(runner.CauseKilled, "enough", "")
	f := end(t, p)
	if len(f.StdoutNoise) == 0 || !strings.HasSuffix(f.StdoutNoise[0], "[line cut]") {
		t.Errorf("noise: %q", f.StdoutNoise)
	}
}

func TestBadLogLines(t *testing.T) {
	var out buffer
	path := filepath.Join(t.TempDir(), "log")
	p := mustLaunch(t, "bad-log", func(s *worker.Spec) {
		s.LogPath = path
		s.Logger = hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Trace, JSONFormat: true})
	})
	p.Kill(runner.CauseKilled, "enough", "")
	end(t, p)
	for _, want := range []string{`"@message":"5"`, `"@message":"good line"`, `"step":7`, `"worker":"drafter/1"`, `"generation":3`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("host log lacks %s:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "forged") {
		t.Error("a worker took another's name in the host's log")
	}
	raw, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(raw), `{"@message":5}`) || !strings.Contains(string(raw), "forged/9") {
		t.Errorf("log file: %v:\n%s", err, raw)
	}
}

func TestLongStderrLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := mustLaunch(t, "long-line", func(s *worker.Spec) { s.LogPath = path })
	p.Kill(runner.CauseKilled, "enough", "")
	f := end(t, p)
	if n := len(f.Stderr); n != 2 || f.Stderr[1] != "after the long line" || len(f.Stderr[0]) > 2000 {
		t.Errorf("%d lines kept", n)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1<<17 {
		t.Errorf("log file: %v, %v", info.Size(), err)
	}
}

func TestHangInWarmUp(t *testing.T) {
	p := mustLaunch(t, "hang-warm-up", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // its progress is told before that
	defer cancel()
	_, err := p.WarmUp(ctx, nil)
	if runner.KindOf(err) != runner.Unavailable {
		t.Errorf("error: %v", err)
	}
	f := end(t, p)
	if f.Cause != runner.CauseDeadline || !strings.Contains(f.Message, "no answer to warm-up (first_pass, bucket 256, 1 of 2) within") ||
		len(f.Traceback) < 2 || !strings.HasPrefix(f.Traceback[0], "Current thread") {
		t.Errorf("report: %+v", f)
	}
}

func TestWarmUpGivenUp(t *testing.T) {
	p := mustLaunch(t, "hang-warm-up", nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := p.WarmUp(ctx, func(w *workerv1.WarmUpProgress) {
		if w.Done == 1 {
			cancel()
		}
	})
	if err == nil {
		t.Fatal("no error")
	}
	if f := end(t, p); f.Cause != runner.CauseKilled {
		t.Errorf("report: %+v", f)
	}
}

func TestDeathInWarmUp(t *testing.T) {
	p := mustLaunch(t, "die-in-warm-up", nil)
	if _, err := p.WarmUp(t.Context(), nil); err == nil {
		t.Fatal("no error")
	}
	f := end(t, p)
	if f.Cause != runner.CausePython || f.Message != "RuntimeError: no kernel" || f.ExitCode != 1 || len(f.Traceback) != 3 || f.ForcedBySelf {
		t.Errorf("report: %+v", f)
	}
}

func TestStubbornWorker(t *testing.T) {
	p := mustLaunch(t, "stubborn", func(s *worker.Spec) { s.Grace = 300 * time.Millisecond })
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := end(t, p)
	if f.Cause != runner.CauseKilled || !f.ForcedBySelf || f.Message != "did not end within 300ms of SIGTERM" {
		t.Errorf("report: %+v", f)
	}
}

func TestStoppedWorker(t *testing.T) {
	p := mustLaunch(t, "good", nil)
	syscall.Kill(p.Pid(), syscall.SIGSTOP)
	for until := time.Now().Add(10 * time.Second); p.SignAge() < 400*time.Millisecond; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a stopped worker still gives signs of life")
		}
	}
	p.Kill(runner.CauseDeadline, "no sign of life", "")
	if f := end(t, p); f.Cause != runner.CauseDeadline || f.LastSignMS < 400 {
		t.Errorf("report: %+v", f)
	}
}

// TestSignsOfLife: a second after the start the newest sign is not a second old.
func TestSignsOfLife(t *testing.T) {
	p := mustLaunch(t, "good", func(s *worker.Spec) { s.PingEvery = 20 * time.Millisecond })
	<-time.After(time.Second)
	for until := time.Now().Add(5 * time.Second); p.SignAge() > 500*time.Millisecond; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("an idle worker's newest sign of life is %v old", p.SignAge())
		}
	}
}

func TestKilledFromOutside(t *testing.T) {
	p := mustLaunch(t, "good", nil)
	if _, err := p.WarmUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	syscall.Kill(p.Pid(), syscall.SIGKILL)
	f := end(t, p)
	if f.Cause != runner.CauseSignal || f.Signal != "SIGKILL" || f.ForcedBySelf || f.OOMKilled == "yes" || f.Message != "killed by SIGKILL during running" {
		t.Errorf("report: %+v", f)
	}
}

func TestChildHoldsPipes(t *testing.T) {
	for _, which := range []string{"child", "escape"} {
		p := mustLaunch(t, which, nil)
		child, err := strconv.Atoi(p.Description().GetEnvironment()["child"])
		if err != nil || !alive(child) {
			t.Fatalf("%s: child %d: %v", which, child, err)
		}
		syscall.Kill(p.Pid(), syscall.SIGKILL)
		end(t, p)
		if alive(child) {
			t.Errorf("%s: descendant %d is alive after Done", which, child)
			syscall.Kill(child, syscall.SIGKILL)
		}
	}
}

func TestHostEnvironmentDoesNotWin(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
	t.Setenv("OMP_NUM_THREADS", "64")
	t.Setenv("RANK", "5")
	t.Setenv("HF_HOME", "/hub")
	p := mustLaunch(t, "good", func(s *worker.Spec) { s.Env = append(s.Env, "OMP_NUM_THREADS=1") })
	e := p.Description().GetEnvironment()
	if e["OMP_NUM_THREADS"] != "1" || e["HF_HOME"] != "/hub" {
		t.Errorf("OMP_NUM_THREADS %q, HF_HOME %q", e["OMP_NUM_THREADS"], e["HF_HOME"])
	}
	for _, name := range []string{"RANK", "CUDA_VISIBLE_DEVICES"} {
		if v, ok := e[name]; ok {
			t.Errorf("%s leaked in: %q", name, v)
		}
	}
}

func TestCookie(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = []string{workertest.EnvName + "=good"}
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "plugin") {
		t.Errorf("a worker started by hand: %v, %s", err, out)
	}
}

func TestLaunchGivenUp(t *testing.T) {
	spec := workertest.Spec(t, life, "hang-configure")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	spec.Logger = hclog.New(&hclog.LoggerOptions{Output: &cancelOn{cancel: cancel, word: "configuring"}, Level: hclog.Trace})
	_, err := worker.Launch(ctx, spec)
	var failed *worker.LaunchError
	if !errors.As(err, &failed) || failed.Failure.Cause != runner.CauseKilled || runner.KindOf(err) != runner.Canceled {
		t.Errorf("error: %v", err)
	}
}

// cancelOn cancels when word is logged.
type cancelOn struct {
	cancel context.CancelFunc
	word   string
}

func (c *cancelOn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.word)) {
		c.cancel()
	}
	return len(p), nil
}
