package leash

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"
)

// TestReleaseKillsTheGroup: all of it, and nothing before.
func TestReleaseKillsTheGroup(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 & echo up; read x; echo alive; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	l, err := New(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("x\n")); err != nil || !lines.Scan() || lines.Text() != "alive" {
		t.Errorf("on a leash: got %q, %v", lines.Text(), err)
	}
	l.Release()
	if lines.Scan() { // ends only when the last of the group is gone, as each holds the pipe
		t.Errorf("got %q", lines.Text())
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", err)
	}
}
