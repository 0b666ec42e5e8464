package pyenv

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/leash"
)

// Bounds on what a child says.
const (
	maxLine   = 400
	tailLines = 24
)

// command is one child: it leads a process group that dies with this process,
// and its output is read line by line.
type command struct {
	dir  string
	env  []string
	args []string
	line func(string) // called for every line, from one goroutine; may be nil
}

// run waits for the child. The tail of its output comes back in any case, and
// after a failure is part of the error. A canceled ctx kills the whole group.
func (c command) run(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.WaitDelay = 5 * time.Second
	r, w, err := os.Pipe()
	if err != nil {
		return nil, runner.Errorf(runner.Exhausted, "run %s: %w", c.args[0], err)
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w

	tail, begun := make(chan []string, 1), make(chan struct{})
	// Ends when every holder of the pipe's other end is gone, or it is closed
	// below; waited for through tail. Nothing that the command prints is told
	// before the command is on its leash.
	go func() {
		<-begun
		tail <- readTail(r, c.line)
	}()
	err = leash.Run(cmd, func() {
		w.Close()
		close(begun)
	})
	var lines []string
	select {
	case lines = <-tail:
	case <-time.After(cmd.WaitDelay): // something that left the group holds the pipe
		r.Close()
		lines = <-tail
	}
	if ctx.Err() != nil {
		return lines, runner.Errorf(runner.Canceled, "run %s: %w", c.args[0], context.Cause(ctx))
	}
	return lines, err
}

// readTail reads lines to the end and keeps the last ones, each cut to a
// bound. A carriage return ends a line too: progress bars use it.
func readTail(r io.Reader, line func(string)) []string {
	var tail []string
	b := bufio.NewReaderSize(r, 4096)
	var cur []byte
	for {
		c, err := b.ReadByte()
		if err == nil && c != '\n' && c != '\r' {
			if len(cur) < maxLine {
				cur = append(cur, c)
			}
			continue
		}
		if s := strings.TrimRight(strings.ToValidUTF8(string(cur), "?"), " \t"); s != "" {
			if line != nil {
				line(s)
			}
			if tail = append(tail, s); len(tail) > tailLines {
				tail = tail[1:]
			}
		}
		cur = cur[:0]
		if err != nil {
			return tail
		}
	}
}

// exitText says how a child ended.
func exitText(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ProcessState.String()
	}
	return err.Error()
}
