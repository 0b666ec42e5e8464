package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestPrivateGroup: a group is a user's alone where the machine's own files say so.
func TestPrivateGroup(t *testing.T) {
	const users = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/sh\neve:x:1002:1003::/home/eve:/bin/sh\n"
	for _, c := range []struct {
		uid    int
		gid    uint32
		groups string
		want   bool
	}{
		{1000, 1000, "ann:x:1000:\n", true},
		{1000, 1000, "ann:x:1000:ann\n", true},
		{1000, 1000, "ann:x:1000:bob\n", false},     // bob may write
		{1000, 1000, "ann:x:1000:ann,bob\n", false}, // so may he here
		{1000, 1000, "users:x:1000:\n", false},      // not named for ann: others are put in it
		{1000, 1001, "bob:x:1001:\n", false},        // bob's
		{1002, 1003, "eve:x:1002:\n", false},        // 1003 is in no file
		{1000, 50, "staff:x:50:\n", false},
		{1000, 1000, "", false},
		{4242, 0, "root:x:0:\n", false}, // a container's unknown user in root's group
	} {
		if got := private(c.uid, c.gid, users, c.groups); got != c.want {
			t.Errorf("uid %d, gid %d, groups %q: want %v, got %v", c.uid, c.gid, c.groups, c.want, got)
		}
	}
	if private(1000, 1000, users+"mallory:x:1005:1000::/:/bin/sh\n", "ann:x:1000:\n") {
		t.Error("want ann's group not hers alone where it is mallory's primary one")
	}
}

// TestGroupWritable: what a group may write is refused, every place of a path at
// once, with the command that mends it.
func TestGroupWritable(t *testing.T) {
	e := file(t, "a plugin", "hello\n", 0o664)
	dir := filepath.Dir(e.Program.Path)
	t.Cleanup(func() { ownGroup = byFiles })
	for path, mode := range map[string]os.FileMode{e.Program.Path: 0o664, dir: 0o770} { // whatever the umask made of them
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	ownGroup = func(uint32) bool { return true }
	if err := Verify(e); err != nil {
		t.Errorf("the user's own group: got %v", err)
	}
	ownGroup = func(uint32) bool { return false }
	err := Verify(e)
	if err == nil || !strings.Contains(err.Error(), "got "+e.Program.Path+" with mode -rw-rw-r--, "+dir+" with mode drwxrwx---") ||
		runner.HintOf(err) != "`chmod go-w '"+e.Program.Path+"' "+dir+"`" {
		t.Errorf("got %v, hint %q", err, runner.HintOf(err))
	}
	if err := os.Chmod(dir, 0o770|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(e.Program.Path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Verify(e); err != nil {
		t.Errorf("a sticky directory: got %v", err)
	}
}

// TestScriptsNeedAnInterpreter: one in the first line is in no sum; one in the
// catalog is.
func TestScriptsNeedAnInterpreter(t *testing.T) {
	e := file(t, "script", "#!/bin/sh\n", 0o700)
	if err := Verify(e); err == nil || runner.HintOf(err) == "" || !strings.Contains(err.Error(), `begins with "#!/bin/sh"`) {
		t.Errorf("got %v", err)
	}
	sum, err := Sum("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	e.Interpreter = File{"/bin/sh", sum}
	if err := Verify(e); err != nil {
		t.Errorf("pinned: got %v", err)
	}
	if err := Verify(file(t, "script.py", "#!/usr/bin/env python3\n", 0o700)); err != nil {
		t.Errorf("Python: got %v", err)
	}
}
