package bench

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

const gitWait = 20 * time.Second // for each question to git

// checkout is what git says of a directory with another's sources.
type checkout struct {
	Path   string
	Commit string // its HEAD; none where the directory is not the root of a repository
	State  string // clean, dirty with what changed, or why there is no commit
}

// look asks git about a directory, without writing to it. That there is no git,
// or no repository of the directory's own, is an answer and no error.
func look(ctx context.Context, dir string) (checkout, error) {
	path, err := filepath.Abs(dir)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return checkout{}, runner.Errorf(runner.NotFound, "open checkout: %w", err)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return checkout{}, runner.Errorf(runner.NotFound, "open checkout: want a directory, got %s", dir)
	}
	c := checkout{Path: path, Commit: "none"}
	root, err := git(ctx, path, "rev-parse", "--show-toplevel")
	if ctx.Err() != nil {
		return c, runner.Errorf(runner.Canceled, "read checkout: interrupted")
	}
	switch {
	case err != nil:
		c.State = "not under git: " + err.Error()
		return c, nil
	case root != path:
		c.State = "no repository of its own, but a directory of " + root
		return c, nil
	}
	head, err := git(ctx, path, "rev-parse", "HEAD")
	if err != nil {
		c.State = "no commit: " + err.Error()
		return c, nil
	}
	c.Commit = head
	changed, err := git(ctx, path, "status", "--porcelain", "--untracked-files=normal")
	switch {
	case err != nil:
		c.State = "not known: " + err.Error()
	case changed == "":
		c.State = "clean"
	default:
		lines := strings.Split(changed, "\n")
		c.State = "dirty: " + strings.TrimSpace(lines[0])
		if more := len(lines) - 1; more > 0 {
			c.State += " and " + number(float64(more)) + " more"
		}
	}
	return c, nil
}

// git asks one question. Nothing that the repository configures is run for it,
// and whoever owns the directory is trusted: its code is what is about to run.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir, "-c", "safe.directory=*", "-c", "core.fsmonitor=false"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		return "", runner.Errorf(runner.Unavailable, "%s", lastLine(stderr.Bytes()))
	}
	return strings.TrimRight(string(out), "\n"), err
}
