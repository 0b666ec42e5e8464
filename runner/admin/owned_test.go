package admin

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnedDirectories: a directory is dead only where its owner is proved to
// be, and whatever else is not its living owner's is said to be left alone.
func TestOwnedDirectories(t *testing.T) {
	runtime, err := os.MkdirTemp("", "dfr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtime) })
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	mine, release, err := OwnedDirectory("/runs/x")
	if err != nil {
		t.Fatal(err)
	}
	runtime = filepath.Join(runtime, "dflash-runner")
	if s, err := os.Stat(mine); err != nil || s.Mode().Perm() != 0o700 || filepath.Dir(mine) != runtime {
		t.Errorf("got %s, %v, %v", mine, s, err)
	}
	self := live(t).Process
	change := func(f func(p *Process)) any { p := self; f(&p); return p }
	cases := map[string]struct {
		record any // nil: none
		dead   bool
		why    string
	}{
		"living":       {self, false, ""},
		"reused":       {change(func(p *Process) { p.StartTicks++ }), true, ""},
		"absent":       {change(func(p *Process) { p.Pid = 1 << 30 }), true, ""},
		"other-boot":   {change(func(p *Process) { p.BootID = "x" }), true, ""},
		"elsewhere":    {change(func(p *Process) { p.Namespace = "pid:[1]" }), false, "in another pid namespace"},
		"gaps":         {change(func(p *Process) { p.BootID = "" }), false, "has gaps"},
		"no-start":     {change(func(p *Process) { p.StartTicks = 0 }), false, "has gaps"},
		"unreadable":   {"not a process", false, "cannot be read"},
		"plugin-dir17": {nil, false, "does not say whose it is"},
	}
	for name, c := range cases {
		dir := filepath.Join(runtime, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if c.record != nil {
			text, err := json.Marshal(c.record)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, ownerFile), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := OwnedDirectories(runtime)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Owned{}
	for _, o := range all {
		got[filepath.Base(o.Path)] = o
	}
	for name, c := range cases {
		o, listed := got[name]
		if listed != (c.dead || c.why != "") || o.Dead != c.dead || !strings.Contains(o.Why, c.why) || c.dead && o.Why != "" {
			t.Errorf("%s: listed %v, %+v", name, listed, o)
		}
	}
	if _, listed := got[filepath.Base(mine)]; listed {
		t.Error("this process's own directory is listed, though it lives")
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mine); !os.IsNotExist(err) {
		t.Errorf("after its release: %v", err)
	}
}

// TestZombieIsGone: a process that has ended holds nothing, waited for or not.
func TestZombieIsGone(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	p, err := identify(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if dead, why := p.gone(); dead || why != "" {
		t.Errorf("alive: dead %v, %q", dead, why)
	}
	_ = child.Process.Kill()
	if err := unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if dead, why := p.gone(); !dead {
		t.Errorf("ended: dead %v, %q", dead, why)
	}
}

// TestRemoveLeft: what the dead left goes where it was of this run, and nothing else.
func TestRemoveLeft(t *testing.T) {
	base, err := os.MkdirTemp("", "dfr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	t.Setenv("XDG_RUNTIME_DIR", base)
	runtime, err := RuntimeDirectory()
	if err != nil {
		t.Fatal(err)
	}
	self := live(t).Process
	dead := self
	dead.StartTicks++ // the pid is another process's by now
	elsewhere := self
	elsewhere.Namespace = "pid:[1]"
	reboot := self
	reboot.BootID = "another boot"
	for name, o := range map[string]owner{
		"s-mine": {dead, "/runs/x"}, "s-boot": {reboot, "/runs/x"}, "s-other": {dead, "/runs/x2"}, "s-old": {dead, ""},
		"s-live": {self, "/runs/x"}, "s-far": {elsewhere, "/runs/x"},
	} {
		if err := os.Mkdir(filepath.Join(runtime, name), 0o700); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string][]byte{ownerFile: text, "socket": nil} {
			if err := os.WriteFile(filepath.Join(runtime, name, file), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	gone, err := RemoveLeft("/runs/x")
	if err != nil || len(gone) != 2 || filepath.Base(gone[0]) != "s-boot" || filepath.Base(gone[1]) != "s-mine" {
		t.Errorf("removed %v, %v, want s-boot and s-mine", gone, err)
	}
	left, err := filepath.Glob(filepath.Join(runtime, "s-*"))
	if err != nil || len(left) != 4 {
		t.Errorf("left %v, %v, want the four others", left, err)
	}
}
