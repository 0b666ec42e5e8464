package leash

import (
	"bufio"
	"context"
	"os"
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

// TestRunEndsTheGroup: with the command, and with its context.
func TestRunEndsTheGroup(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		cancel bool
	}{
		"with the command": {"sleep 1000 & echo up", false},
		"with its context": {"sleep 1000 & echo up; wait", true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := exec.CommandContext(ctx, "/bin/sh", "-c", c.script)
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			cmd.Stdout = write
			started, over := make(chan struct{}), make(chan error, 1)
			go func() { over <- Run(cmd, func() { close(started) }) }() // ends with the command
			<-started
			write.Close()
			lines := bufio.NewScanner(read)
			if !lines.Scan() || lines.Text() != "up" {
				t.Errorf("got %q", lines.Text())
			}
			if c.cancel {
				cancel()
			}
			if err := <-over; (err != nil) != c.cancel {
				t.Errorf("ended with %v", err)
			}
			if lines.Scan() { // ends only when the last of the group is gone, as each holds the pipe
				t.Errorf("got %q", lines.Text())
			}
		})
	}
	if err := Run(exec.CommandContext(t.Context(), "/no/such/program"), func() {}); err == nil {
		t.Error("started what is not there")
	}
}
