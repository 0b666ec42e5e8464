package admin

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Find gives the directory of a run: the named one, or the newest by its
// status.json. A name may also be a path to a run's directory.
func Find(root, name string) (string, error) {
	if name != "" {
		return findNamed(root, name)
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", runner.Errorf(runner.Unavailable, "find run: %w", err)
	}
	newest, at := "", time.Time{}
	for _, e := range entries {
		s, err := os.Stat(filepath.Join(root, e.Name(), StatusFile))
		if err == nil && (newest == "" || s.ModTime().After(at)) {
			newest, at = filepath.Join(root, e.Name()), s.ModTime()
		}
	}
	if newest == "" {
		return "", runner.Errorf(runner.NotFound, "find run: no run in %s", root).
			WithHint("`dflash-runner up` starts one; --runs names another directory")
	}
	return newest, nil
}

func findNamed(root, name string) (string, error) {
	dir := filepath.Join(root, name)
	if strings.ContainsRune(name, filepath.Separator) {
		dir = filepath.Clean(name)
	}
	if s, err := os.Stat(dir); err != nil || !s.IsDir() {
		return "", runner.Errorf(runner.NotFound, "find run %q: no directory %s", name, dir).WithHint("known runs: %s", known(root))
	}
	return dir, nil
}

// known lists runs for a hint.
func known(root string) string {
	found, err := filepath.Glob(filepath.Join(root, "*", StatusFile))
	if err != nil || len(found) == 0 {
		return "none in " + root
	}
	names := make([]string, 0, len(found))
	for _, f := range found[:min(len(found), 10)] {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	return strings.Join(names, ", ")
}

// Snapshot is a run's status and where it came from.
type Snapshot struct {
	Status
	Client *Client // nil: nobody answers, the status was read from status.json
	Note   string  // says so to people, empty for a run that answers
}

// Open asks the run in a directory, or reads what it left.
func Open(ctx context.Context, directory string) (Snapshot, error) {
	client, dialErr := Connect(ctx, directory)
	if dialErr == nil {
		s, err := client.Status(ctx)
		if err == nil {
			return Snapshot{Status: s, Client: client}, nil
		}
		dialErr = err
	}
	s, err := ReadStatus(directory)
	if err != nil {
		if runner.KindOf(err) == runner.NotFound {
			return Snapshot{}, runner.Errorf(runner.NotFound, "open run %s: it has no %s and does not answer", directory, StatusFile).
				WithHint("it may have died before it began: look into %s", filepath.Join(directory, "logs"))
		}
		return Snapshot{}, err
	}
	note := ""
	switch s.State {
	case Ended:
		note = "the run is over; this is its last status"
	case Lost:
		note = "the run's process is gone and wrote no end: it was killed, or the machine went down; this is its last status"
	default:
		note = "the run does not answer on its socket (" + dialErr.Error() + "); this is status.json"
	}
	return Snapshot{Status: s, Note: note}, nil
}
