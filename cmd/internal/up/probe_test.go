package up

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/probe"
)

// goodLine is a sample of GPU-0000 as the probe prints it.
const goodLine = `{"devices": [{"uuid": "GPU-0000", "error": null, "utilisation": 42}]}`

// probes are children as real processes. Each marks its start in the file
// starts; sleeps are children of their own, as a hanging call has threads.
var probes = map[string]struct {
	script string
	first  string // what is said of the GPU first
	starts int    // at least
}{
	"good":             {`while :; do echo '` + goodLine + `'; sleep 0.02; done`, "healthy", 1},
	"hangs at once":    {`sleep 600`, "no answer in time", 2},
	"hangs, deaf":      {`trap '' TERM; while :; do sleep 1; done`, "no answer in time", 2},
	"hangs later":      {`echo '` + goodLine + `'; sleep 600`, "no answer in time", 2},
	"garbage":          {`echo 'Driver/library version mismatch'; sleep 600`, "read sample: want one JSON object", 2},
	"huge lines":       {`head -c 3000000 /dev/zero | tr '\0' x; echo; sleep 600`, "printed a line of more than 1048576 bytes", 2},
	"an endless line":  {`exec cat /dev/zero`, "printed a line of more than 1048576 bytes", 2},
	"floods stderr":    {`head -c 3000000 /dev/zero | tr '\0' y >&2; while :; do echo '` + goodLine + `'; sleep 0.02; done`, "healthy", 1},
	"dies":             {`echo '` + goodLine + `'; echo 'Traceback' >&2; exit 7`, "code 7", 2},
	"is killed":        {`kill -SEGV $$`, "SIGSEGV", 2},
	"ends well":        {`echo '` + goodLine + `'`, "ended by itself", 2},
	"lacks a library":  {`echo '{"error": "read GPUs: no pynvml", "hint": "install nvidia-ml-py"}'; exit 3`, "no pynvml (install nvidia-ml-py)", 2},
	"leaves a process": {`(setsid sleep 600 &) ; echo '` + goodLine + `'; sleep 600`, "no answer in time", 2},
}

// TestProbes: whatever the child does, the GPU is said to be healthy only where
// it answers, the child is started again, and nothing of it is left.
func TestProbes(t *testing.T) {
	for name, c := range probes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := probed(t, c.script)
			conf := u.probing()
			conf.First, conf.Deadline = 400*time.Millisecond, 400*time.Millisecond
			conf.BackoffMin, conf.BackoffMax, conf.Lived = 10*time.Millisecond, 50*time.Millisecond, time.Hour
			ctx, cancel := context.WithCancel(context.Background())
			w := probe.Start(ctx, conf)
			limit := time.Now().Add(30 * time.Second)
			for seen := false; !seen || int(w.Starts()) < c.starts; {
				d := w.Devices(time.Now())[0]
				if c.first == "healthy" {
					seen = d.Status == admin.Healthy && *d.Utilisation == 42
				} else {
					seen = seen || d.Status == admin.Unknown && strings.Contains(d.Detail, c.first)
				}
				if time.Now().After(limit) {
					t.Fatalf("want %q and %d starts, got %s %q and %d", c.first, c.starts, d.Status, d.Detail, w.Starts())
				}
				time.Sleep(time.Millisecond) // between looks
			}
			cancel()
			if err := w.Close(20 * time.Second); err != nil {
				t.Error(err)
			}
			if left := processesIn(t, u.dir.path); len(left) > 0 {
				t.Errorf("left running: %v", left)
			}
		})
	}
}

// probed is a run whose interpreter is a shell script.
func probed(t *testing.T, script string) *up {
	t.Helper()
	root := t.TempDir()
	interpreter := filepath.Join(root, "python")
	if err := os.WriteFile(interpreter, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := openRun(filepath.Join(root, "runs"), "run", intent{})
	if err != nil {
		t.Fatal(err)
	}
	u := &up{dir: dir, python: python{interpreter: interpreter, tree: root}, plan: plan.Plan{Devices: []plan.Device{{UUID: "GPU-0000", Name: "H200"}}}}
	u.config = config.Default()
	a := &around{u: u, cancel: func() {}}
	for _, step := range []func() error{a.log, a.events} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
		dir.close()
	})
	return u
}

// processesIn lists processes whose working directory is that.
func processesIn(t *testing.T, dir string) (left []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range all {
		if at, err := os.Readlink(link); err == nil && at == dir {
			left = append(left, link)
		}
	}
	return left
}

// TestARunWatchesItsGPUs: the status has the GPU while the run goes on, and
// what was known last after it.
func TestARunWatchesItsGPUs(t *testing.T) {
	u := probed(t, `for a; do echo "$a" >> args; done; while :; do echo '`+goodLine+`'; sleep 0.02; done`)
	u.board = newBoard(time.Now)
	end := u.watchGPUs(t.Context())
	limit := time.Now().Add(30 * time.Second)
	for {
		s := u.Status()
		if len(s.Devices) == 1 && s.Devices[0].Status == admin.Healthy {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("got %+v", s.Devices)
		}
		time.Sleep(time.Millisecond) // between looks
	}
	end()
	if s := u.Status(); len(s.Devices) != 1 || s.Devices[0].Status != admin.Healthy || len(s.Degraded) != 0 {
		t.Errorf("afterwards: got %+v, degraded %+v", s.Devices, s.Degraded)
	}
	args, err := os.ReadFile(u.dir.join("args"))
	if err != nil || string(args) != "-m\ndflash_runner.probe\n2\nGPU-0000\n" {
		t.Errorf("the probe was told %q, %v", args, err)
	}
	u.plan.Devices = nil
	u.watchGPUs(t.Context())() // on a CPU: nothing
	events, err := os.ReadFile(u.dir.join("events.jsonl"))
	if text := fmt.Sprint(string(events)); err != nil || strings.Count(text, "GPUs are watched") > 1 || strings.Contains(text, `"level":"`+string(runner.Warn)) {
		t.Errorf("events: %s, %v", text, err)
	}
}
