package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestInterruptedPlugin: Ctrl-C while a plugin is asked ends it, and leaves no
// directory of it behind.
func TestInterruptedPlugin(t *testing.T) {
	dir, runtime := t.TempDir(), shortDirectory(t) // a socket's path must be short
	program, hangs, asked := filepath.Join(dir, "dflash-runner"), filepath.Join(dir, "hangs"), filepath.Join(dir, "asked")
	for _, name := range []string{program, hangs} { // testscript tells by the name what the binary is
		if err := os.Link(os.Args[0], name); err != nil {
			copied(t, os.Args[0], name)
		}
	}
	for _, command := range []string{"describe", "test"} {
		t.Run(command, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := exec.Command(program, "plugins", command, hangs, "--arg", asked, "--set", "scheduler.start=10m")
			cmd.Dir, cmd.Stderr = dir, &stderr
			cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_RUNTIME_DIR="+runtime)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for late := time.After(time.Minute); os.Remove(asked) != nil; {
				select {
				case <-tick.C:
				case <-late:
					_ = cmd.Process.Kill()
					t.Fatalf("it was not asked: %v, %s", cmd.Wait(), stderr.String())
				}
			}
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			if cmd.ProcessState.ExitCode() != 1 || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), "interrupted") {
				t.Errorf("got %v, said %s", err, stderr.String())
			}
			if left, err := filepath.Glob(filepath.Join(runtime, "*", "s-*")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// hang says at a path that it was started, and never greets.
func hang(asked string) {
	if err := os.WriteFile(asked, nil, 0o600); err != nil {
		os.Exit(1)
	}
	select {}
}

func shortDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "r")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func copied(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
}
