package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// patience bounds every wait for a run. It is generous: machines are busy.
const patience = 6 * time.Minute

// markName passes the workers' allow-list of the environment by its prefix, so
// everything that a run starts can be found by it, whoever its parent is.
const markName = "HF_E2E_MARK"

// home is a directory in which a user works, with runs of its own.
type home struct {
	t    *testing.T
	dir  string
	mark string
	env  []string
}

// newHome makes one; when the test ends nothing of its runs may be left.
func newHome(t *testing.T) *home {
	t.Helper()
	pyenvtest.Ensure(t)
	h := &home{t: t, dir: t.TempDir(), mark: markName + "=" + rand.Text()}
	runtime, err := os.MkdirTemp(built.dir, "run-") // 0700, and short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if slices.Contains([]string{"PATH", "HOME", "USER", "TMPDIR", "LANG"}, name) {
			h.env = append(h.env, entry)
		}
	}
	h.env = append(h.env, "XDG_CACHE_HOME="+built.cache, "XDG_RUNTIME_DIR="+runtime, h.mark)
	t.Cleanup(func() {
		if left := h.left(5 * time.Second); len(left) > 0 {
			t.Errorf("processes outlive their run: %v", left)
			for _, p := range left {
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
	})
	return h
}

// path names a file of a run.
func (h *home) path(run string, elem ...string) string {
	return filepath.Join(append([]string{h.dir, "runs", run}, elem...)...)
}

// result is a command that has ended.
type result struct {
	code     int
	out, err string
}

// running is a command that was started.
type running struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err output
	done     chan struct{}
}

// output takes what a process prints, and can be read meanwhile.
type output struct {
	mu   sync.Mutex // guards below
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs the binary in the background.
func (h *home) start(args ...string) *running {
	h.t.Helper()
	return h.launch(nil, command(args...))
}

// launch runs a command in the background, with more in its environment.
func (h *home) launch(more []string, cmd *exec.Cmd) *running {
	h.t.Helper()
	r := &running{t: h.t, cmd: cmd, done: make(chan struct{})}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = h.dir, append(slices.Clone(h.env), more...), &r.out, &r.err
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() { // ends with the process, which the cleanup kills
		defer close(r.done)
		_ = cmd.Wait() // the code is in ProcessState
	}()
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-r.done
	})
	return r
}

// ended reports whether the process is over.
func (r *running) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// wait gives the result; a process that takes too long fails the test.
func (r *running) wait() result {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.t.Fatalf("%v still runs after %v\n%s", r.cmd.Args, patience, r.err.String())
	}
	got := result{r.cmd.ProcessState.ExitCode(), r.out.String(), r.err.String()}
	if strings.Contains(got.err, "DATA RACE") {
		r.t.Errorf("%v: %s", r.cmd.Args, got.err)
	}
	return got
}

func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// run runs the binary to its end.
func (h *home) run(args ...string) result {
	h.t.Helper()
	return h.start(args...).wait()
}

// must runs the binary, wants an exit code, and gives what it printed.
func (h *home) must(code int, args ...string) result {
	h.t.Helper()
	r := h.run(args...)
	r.want(h.t, code, strings.Join(args, " "))
	return r
}

func (r result) want(t *testing.T, code int, what string) {
	t.Helper()
	if r.code != code {
		t.Fatalf("%s: want exit %d, got %d\nstdout: %s\nstderr: %s", what, code, r.code, r.out, r.err)
	}
}

// json decodes what a command printed.
func (r result) json(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), into); err != nil {
		t.Fatalf("want JSON on stdout: %v\n%s", err, r.out)
	}
}

// up gives the arguments of a run of the test configuration, in plain lines.
func up(name string, more ...string) []string {
	return append([]string{"up", "-f", built.config, "--plain", "--name", name}, more...)
}

// set writes settings as --set flags.
func set(settings ...string) (flags []string) {
	for _, s := range settings {
		flags = append(flags, "--set", s)
	}
	return flags
}

// status asks a run over its socket, or reads what it left; ok is false before
// there is anything.
func (h *home) status(run string) (admin.Snapshot, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := admin.Open(ctx, h.path(run))
	return s, err == nil
}

// until waits for a run to be somewhere; a supervisor that ends before is a failure.
func (h *home) until(r *running, run, what string, there func(admin.Snapshot) bool) {
	h.t.Helper()
	eventually(h.t, what, func() bool {
		if r != nil && r.ended() {
			h.t.Fatalf("the run ended before: %s\n%s", what, r.wait().err)
		}
		s, ok := h.status(run)
		return ok && there(s)
	})
}

// eventually polls until it holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); ; {
		if holds() {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// command is the binary with arguments.
func command(args ...string) *exec.Cmd { return exec.Command(built.binary, args...) }
