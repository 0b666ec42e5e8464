package up

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// becomePlugin is this binary as the plugin called which. It never returns.
func becomePlugin(args []string) {
	which := args[0]
	switch which {
	case "none":
		fmt.Println("usage: none [flags]")
		os.Exit(0)
	case "exits":
		fmt.Fprintln(os.Stderr, "no licence found")
		os.Exit(3)
	case "old-version":
		fmt.Printf("1|7|unix|%s/s|grpc|\n", os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
		select {}
	case "sleeps":
		select {}
	case "prints-first":
		fmt.Println("Welcome to FancyScheduler 3.0")
	}
	scheduler.Serve(bad{plugged{which}, args[len(args)-1], &sync.Once{}})
	os.Exit(0)
}

// bad is plugged, but for what its name says; mark names its children.
type bad struct {
	plugged
	mark string
	once *sync.Once
}

func (b bad) Info() scheduler.Info {
	if b.which == "hang-info" {
		select {}
	}
	return b.plugged.Info()
}

func (b bad) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	switch b.which {
	case "million":
		return make([]runner.Sample, 1_000_000), nil
	case "floods":
		b.once.Do(func() {
			chunk := bytes.Repeat([]byte("a line of a log that nobody reads\n"), 1<<15)
			for range 16 { // 18 MB
				_, _ = os.Stderr.Write(chunk)
			}
		})
	case "grows":
		for range 1000 {
			go func() { select {} }()
		}
		select {} // until it is ended
	case "waits": // until the test saw that
		for os.IsNotExist(stat(b.mark)) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	case "leaks":
		for range 1000 {
			go func() { select {} }()
		}
		for _, session := range []bool{false, true} { // also one that leaves the group
			child := exec.Command("/proc/self/exe", "plugin", "sleeps", b.mark)
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
			if err := child.Start(); err != nil {
				return nil, err
			}
		}
	}
	return b.plugged.Arrange(ctx, q)
}

func stat(path string) error {
	_, err := os.Stat(path)
	return err
}

// badStart is a plugin that cannot be used, and what is said of it.
type badStart struct {
	which, set, says string
	staged           func(code string) error
}

// between is what comes between its check and its start, if anything does.
func (b badStart) between(t *testing.T) func(code string) {
	if b.staged == nil {
		return nil
	}
	return func(code string) {
		if err := b.staged(code); err != nil {
			t.Error(err)
		}
	}
}

// badStarts are plugins that cannot be used, and what is said of them.
var badStarts = []badStart{
	{which: "none", says: `start plugin: it ended before its handshake, with exit code 0; its last line: "usage: none [flags]"`},
	{which: "exits", says: `start plugin: it ended before its handshake, with exit code 3; its last line: "no licence found"`},
	{which: "old-version", says: "start plugin: protocol version: want 1, got 7"},
	{which: "hang-info", set: "scheduler.deadline=300ms", says: "info: no answer within 300ms"},
	{which: "wrong-sum", says: "want sha256 0000"},
	{which: "changed", says: "changed between its check and its start", staged: func(code string) error {
		all, err := filepath.Glob(filepath.Join(code, "*"))
		if err != nil || len(all) != 1 {
			return fmt.Errorf("want one file, got %v, %w", all, err)
		}
		return errors.Join(os.Chmod(all[0], 0o700), os.WriteFile(all[0], []byte("#!/bin/sh\n"), 0o700))
	}},
}

// badSettings configure this binary as a bad plugin.
func badSettings(t *testing.T, which string, more ...string) []string {
	set := plugs(t, which, more...)
	if which == "wrong-sum" {
		for i, s := range set {
			if at := strings.Index(s, "sha256: "); at >= 0 {
				at += len("sha256: ")
				set[i] = s[:at] + strings.Repeat("0", 64) + s[at+64:]
			}
		}
	}
	return set
}

// TestBadPluginIsLeftOut: a plugin that cannot be started gives one line, the
// run goes on with the built-in, and status and health say that it is degraded.
func TestBadPluginIsLeftOut(t *testing.T) {
	for _, c := range badStarts {
		t.Run(c.which, func(t *testing.T) {
			b := newBench(t)
			b.prepare = func(u *up) { u.options.staged = c.between(t) }
			var more []string
			if c.set != "" {
				more = []string{c.set}
			}
			f, u := b.run("bad", false, nil, badSettings(t, c.which, more...)...)
			b.check(f, u)
			degraded(t, u.Status(), c.says, "the built-in decides alone")
			s := u.Status()
			if p := s.Plugin; p == nil || p.Name != "plugged" || p.State != admin.PluginRefused || !strings.Contains(p.Last, c.says) || s.Scheduler != "balanced" {
				t.Errorf("plugin %+v, scheduler %q", p, s.Scheduler)
			}
			if e := u.summary(f, ""); e.Scheduler != "balanced" || e.Plugin == nil || e.Plugin.State != admin.PluginRefused || e.Plugin.SHA256 == "" {
				t.Errorf("summary: %q, %+v", e.Scheduler, e.Plugin)
			}
		})
	}
}

// degraded wants one line about the scheduler in status and health.
func degraded(t *testing.T, s admin.Status, says ...string) {
	t.Helper()
	var lines []string
	for _, r := range s.Degraded {
		if r.Name == schedulerSubject {
			lines = append(lines, r.Detail)
		}
	}
	if len(lines) != 1 || strings.Contains(lines[0], "\n") {
		t.Fatalf("want one line, got %q", lines)
	}
	for _, x := range says {
		if !strings.Contains(lines[0], x) {
			t.Errorf("want %q in %q", x, lines[0])
		}
	}
	s.State = admin.Training // as it was before its end
	h := admin.Judge(s, time.Now())
	for _, item := range h.Checks {
		if item.Name == schedulerSubject && item.Status != admin.Healthy {
			return
		}
	}
	t.Errorf("health says nothing of the scheduler: %+v", h)
}

// TestRequiredBadPlugin: with required: true exit 3, with the line of the
// configuration, before any worker starts.
func TestRequiredBadPlugin(t *testing.T) {
	b := newBench(t)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(b.root, "cache"))
	for _, c := range badStarts {
		stderr, err := os.Create(filepath.Join(b.root, "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		set := badSettings(t, c.which, "scheduler.required=true", "python.interpreter=/nowhere/python", "run.directory="+filepath.Join(b.root, "runs"))
		if c.set != "" {
			set = append(set, c.set)
		}
		code := Run(t.Context(), Options{Name: c.which, Set: set, Stderr: stderr, staged: c.between(t)})
		said, err := os.ReadFile(stderr.Name())
		if err != nil || stderr.Close() != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(said), "error: "); code != runner.ExitPreflight || n != 1 || !strings.Contains(string(said), c.says) {
			t.Errorf("%s: exit %d, said %s", c.which, code, said)
		}
		if logs, err := filepath.Glob(filepath.Join(b.root, "runs", c.which, "logs", "*-[0-9].*")); err != nil || len(logs) > 0 {
			t.Errorf("%s: a worker was started: %v, %v", c.which, logs, err)
		}
	}
}

// TestBadPluginInARun: what a plugin does once it runs costs a strike at most.
func TestBadPluginInARun(t *testing.T) {
	t.Run("prints-first", func(t *testing.T) {
		b := newBench(t)
		f, u := b.run("bad", false, nil, badSettings(t, "prints-first")...)
		b.check(f, u)
		if s := u.Status(); s.Plugin == nil || s.Plugin.Calls == 0 || s.Plugin.Refused != 0 || len(s.Degraded) != 0 {
			t.Errorf("plugin %+v, degraded %v", s.Plugin, s.Degraded)
		}
		if log := pluginLog(t, u); !strings.Contains(log, "FancyScheduler") {
			t.Errorf("log %q", log)
		}
	})
	t.Run("million", func(t *testing.T) {
		b := newBench(t)
		f, u := b.run("bad", false, nil, badSettings(t, "million", "scheduler.deadline=30s")...) // under -race a million takes a while
		b.check(f, u)
		degraded(t, u.Status(), " answers refused, strike ", "got 1000000")
		if p := u.Status().Plugin; p.Refused == 0 || p.Answers == 0 || p.Answers+p.Refused > p.Calls { // it assigns well
			t.Errorf("plugin %+v", p)
		}
	})
	t.Run("floods", func(t *testing.T) {
		b := newBench(t)
		f, u := b.run("bad", false, nil, badSettings(t, "floods", "scheduler.deadline=30s")...)
		b.check(f, u)
		if s := u.Status(); s.Plugin == nil || s.Plugin.Refused != 0 || len(s.Degraded) != 0 {
			t.Errorf("plugin %+v, degraded %v", s.Plugin, s.Degraded)
		}
		if n := len(pluginLog(t, u)); n < 1<<20 || n > 5<<20 {
			t.Errorf("a log of %d bytes, want 4 MiB", n)
		}
		cut := eventsOf(t, u, "scheduling plugin log cut")
		total := regexp.MustCompile(`dflash-runner: (\d+ lines, \d+ bytes) were not kept\n$`).FindStringSubmatch(pluginLog(t, u))
		if len(cut) < 2 || len(cut) > 5 || !strings.Contains(cut[0], "scheduler-plugged.1.log is full: 1 lines, ") || len(total) == 0 || !strings.Contains(cut[len(cut)-1], total[1]) {
			t.Errorf("log cut: events %q, the log's end %q", cut, total)
		}
	})
	t.Run("grows", func(t *testing.T) {
		b := newBench(t)
		b.prepare = func(u *up) { u.options.look = 20 * time.Millisecond }
		f, u := b.run("bad", false, nil, badSettings(t, "grows", "scheduler.limits.tasks=500", "scheduler.backoff_min=1h", "scheduler.backoff_max=1h")...)
		b.check(f, u)
		degraded(t, u.Status(), "ended 1 times, last: vitals: goroutines: want at most 500, got ", "arrange by built-in")
		if told := eventsOf(t, u, "scheduling plugin"); len(told) == 0 || !strings.Contains(told[len(told)-1], "quarantined") || !strings.Contains(told[len(told)-1], "vitals: goroutines") {
			t.Errorf("events %q", told)
		}
	})
	t.Run("waits", func(t *testing.T) {
		b, mark := newBench(t), filepath.Join(t.TempDir(), "seen")
		set := badSettings(t, "waits")
		for i := range set {
			set[i] = strings.Replace(set[i], "args: [plugin, waits]", "args: [plugin, waits, "+mark+"]", 1)
		}
		f, u := b.run("bad", false, func(u *up) {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for late := time.After(time.Minute); ; {
				if p := u.Status().Plugin; p != nil && p.Waiting != nil {
					if w := p.Waiting; w.Question != "arrange" || w.WaitedMS < 0 || w.DeadlineMS != 120_000 || w.Questions != 1 {
						t.Errorf("waiting %+v", w)
					}
					break
				}
				select {
				case <-tick.C:
					continue
				case <-late:
					t.Error("status never says that arrange is waited for")
				}
				break
			}
			if err := os.WriteFile(mark, nil, 0o600); err != nil {
				t.Error(err)
			}
		}, set...)
		b.check(f, u)
		if p := u.Status().Plugin; p == nil || p.Waiting != nil || p.Refused != 0 {
			t.Errorf("plugin %+v", p)
		}
	})
	t.Run("leaks", func(t *testing.T) {
		b, mark := newBench(t), rand.Text()
		set := badSettings(t, "leaks", "scheduler.deadline=30s")
		for i := range set {
			set[i] = strings.Replace(set[i], "args: [plugin, leaks]", "args: [plugin, leaks, "+mark+"]", 1)
		}
		f, u := b.run("bad", false, func(u *up) {
			if _, ok := atStep(u, lastStep/2); ok && marked(t, mark) < 3 {
				t.Error("want the plugin and its children at work")
			}
		}, set...)
		b.check(f, u)
		if s := u.Status(); s.Plugin == nil || s.Plugin.Calls == 0 || s.Plugin.Refused != 0 {
			t.Errorf("plugin %+v", s.Plugin)
		}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for late := time.After(30 * time.Second); marked(t, mark) > 0; { // init reaps those that left the session
			select {
			case <-tick.C:
			case <-late:
				t.Fatalf("%d processes of the plugin outlive the run", marked(t, mark))
			}
		}
	})
}

// marked counts processes whose command line holds a word.
func marked(t *testing.T, word string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(word)) {
			n++
		}
	}
	return n
}

func pluginLog(t *testing.T, u *up) string {
	t.Helper()
	text, err := os.ReadFile(u.dir.join("logs", "scheduler-plugged.1.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
