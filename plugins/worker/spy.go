package worker

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// spyWait bounds py-spy, spyBytes what is read of it.
const (
	spyWait  = 5 * time.Second
	spyBytes = 256 << 10
)

// spy has py-spy show the stacks of a process that did not show them itself, as
// one that is stopped cannot. It looks beside the interpreter, then in PATH.
func spy(ctx context.Context, interpreter string, pid int) ([]string, error) {
	name := filepath.Join(filepath.Dir(interpreter), "py-spy")
	if _, err := exec.LookPath(name); err != nil {
		if name, err = exec.LookPath("py-spy"); err != nil {
			return nil, runner.Errorf(runner.NotFound, "py-spy is not installed")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, spyWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, "dump", "--nonblocking", "--pid", fmt.Sprint(pid))
	cmd.WaitDelay = time.Second
	var out, problem bounded
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		said := clean(strings.Join(strings.Fields(problem.String()), " "), tracebackWidth)
		return nil, runner.Errorf(runner.Unavailable, "py-spy: %w: %s", err, said)
	}
	var t tracebackFinder
	t.set(strings.Split(strings.TrimRight(out.String(), "\n"), "\n"))
	return t.lines, nil
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ bytes.Buffer }

// Write takes everything, and keeps what there is room for.
func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(spyBytes-b.Len(), 0))])
	return len(p), nil
}
