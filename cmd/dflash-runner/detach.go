package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// readyWithin is how long a detached run may take until its socket answers,
// which it does before any long work.
const readyWithin = time.Minute

// started is `up --detach --json`.
type started struct {
	Name      string `json:"name"`
	Pid       int    `json:"pid"`
	Directory string `json:"directory"`
	Output    string `json:"output"` // what it prints goes there
}

// detach starts the run in a session of its own, waits until it answers or
// fails, and leaves it running.
func (c *cli) detach(ctx context.Context, f upFlags) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cache, err := pyenv.DefaultCacheDir()
	if err != nil {
		return err
	}
	binary, err := lasting(cache)
	if err != nil {
		return err
	}
	out, err := outputFile(cache)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return runner.Errorf(runner.Unavailable, "detach: %w", err)
	}
	defer func() { _ = r.Close() }()
	child := exec.Command(binary, f.arguments()...)
	child.Stdout, child.Stderr, child.ExtraFiles = out, out, []*os.File{w} // the first extra file is fd 3
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = child.Start()
	_ = w.Close()
	if err != nil {
		return runner.Errorf(runner.Unavailable, "detach: %w", err)
	}
	return c.await(ctx, child, r, out.Name())
}

// arguments are those of the run that is started; fd 3 is its pipe to us.
func (f upFlags) arguments() []string {
	args := []string{"up", "--ready-fd=3"}
	for name, value := range map[string]string{"file": f.file, "name": f.name} {
		if value != "" {
			args = append(args, "--"+name+"="+value)
		}
	}
	if f.resume {
		args = append(args, "--resume")
	}
	for _, s := range f.set {
		args = append(args, "--set="+s)
	}
	return args
}

// await reads the directory that the run announces. An end of file without one
// means that the run has failed.
func (c *cli) await(ctx context.Context, child *exec.Cmd, r *os.File, output string) error {
	release := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer release()
	_ = r.SetReadDeadline(time.Now().Add(readyWithin)) // a pipe of Go's has deadlines
	text, err := io.ReadAll(r)
	if dir := strings.TrimSpace(string(text)); dir != "" {
		return c.reportStarted(child.Process.Pid, dir, output)
	}
	if err != nil { // interrupted, or the time is over
		_ = child.Process.Signal(syscall.SIGTERM)
		_ = child.Wait()
		if ctx.Err() != nil {
			return runner.Errorf(runner.Canceled, "detach: interrupted before the run answered")
		}
		return runner.Errorf(runner.Unavailable, "detach: the run did not answer within %s and was ended", readyWithin).WithHint("see %s", output)
	}
	var exit *exec.ExitError
	if err := child.Wait(); errors.As(err, &exit) {
		c.code = exit.ExitCode()
	}
	said, _ := os.ReadFile(output) // whatever it is: it goes to the user
	_, _ = c.err.Write(said)
	_ = os.Remove(output)
	if c.code <= 0 {
		c.code = runner.ExitFailed
		return runner.Errorf(runner.Unavailable, "detach: the run ended before it answered")
	}
	return nil
}

// reportStarted moves the output into the run's directory and says where all is.
func (c *cli) reportStarted(pid int, dir, output string) error {
	inside := filepath.Join(dir, "logs", "up.log")
	if err := os.Rename(output, inside); err == nil {
		output = inside
	} else {
		c.tell("note", "the run's output stays in "+output+": "+err.Error())
	}
	s := started{Name: filepath.Base(dir), Pid: pid, Directory: dir, Output: output}
	if c.json {
		return c.printJSON(s)
	}
	return c.print("run %s: started, pid %d, in %s\n", s.Name, s.Pid, s.Directory)
}

// announce tells the waiting parent where the run is.
func announce(fd int, dir string) {
	f := os.NewFile(uintptr(fd), "ready")
	if f == nil {
		return
	}
	_, _ = f.WriteString(dir + "\n") // the parent may be gone: the run goes on
	_ = f.Close()
}

// lasting gives this program's binary, or a copy where `go run` will remove it.
func lasting(cache string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", runner.Errorf(runner.Unavailable, "find own binary: %w", err)
	}
	if !strings.Contains(self, string(filepath.Separator)+"go-build") {
		return self, nil
	}
	text, err := os.ReadFile(self)
	if err != nil {
		return "", runner.Errorf(runner.Unavailable, "copy own binary: %w", err)
	}
	sum := sha256.Sum256(text)
	path := filepath.Join(cache, "bin", "dflash-runner-"+hex.EncodeToString(sum[:8]))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", runner.Errorf(runner.Unavailable, "copy own binary: %w", err)
	}
	if err := renameio.WriteFile(path, text, 0o755); err != nil {
		return "", runner.Errorf(runner.Unavailable, "copy own binary: %w", err)
	}
	return path, nil
}

// outputFile makes the file that takes the run's stdout and stderr.
func outputFile(cache string) (*os.File, error) {
	dir := filepath.Join(cache, "detached")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, runner.Errorf(runner.Unavailable, "detach: %w", err)
	}
	f, err := os.CreateTemp(dir, "up-"+strconv.Itoa(os.Getpid())+"-*.log")
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "detach: %w", err)
	}
	return f, nil
}

// quoted writes a text as a YAML string.
func quoted(s string) string { return strconv.Quote(s) }
