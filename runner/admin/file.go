package admin

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
)

// The files of a run that readers find without its socket.
const (
	StatusFile  = "status.json"
	SummaryFile = "summary.json"
)

// WriteStatus replaces status.json: a reader sees the old or the new one whole.
// It is a picture that the next one replaces a moment later, so nobody waits
// until it is on the disk; still it is not called from the loop.
func WriteStatus(directory string, s Status) error {
	text, err := encode(StatusFile, s)
	if err != nil {
		return err
	}
	path := filepath.Join(directory, StatusFile)
	next := filepath.Join(directory, "."+StatusFile+".next") // one writer: the run's supervisor
	err = os.WriteFile(next, text, 0o644)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return runner.Errorf(runner.Unavailable, "write %s: %w", StatusFile, err)
	}
	return nil
}

// WriteSummary replaces summary.json.
func WriteSummary(directory string, s Summary) error { return write(directory, SummaryFile, s) }

func write(directory, name string, v any) error {
	text, err := encode(name, v)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(directory, name), text, 0o644); err != nil {
		return runner.Errorf(runner.Unavailable, "write %s: %w", name, err)
	}
	return nil
}

func encode(name string, v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "write %s: %w", name, err)
	}
	return append(text, '\n'), nil
}

// ReadStatus reads status.json. A run that says it is running but whose process
// is dead is Lost; one in another pid namespace is believed.
func ReadStatus(directory string) (Status, error) { return readStatus(directory, Process.Look) }

func readStatus(directory string, look func(Process) Life) (s Status, err error) {
	if err := read(directory, StatusFile, &s); err != nil {
		return s, err
	}
	if s.State.Over() || look(s.Process) != Dead {
		return s, nil
	}
	// Between the two looks it may have written its end, and gone.
	if err := read(directory, StatusFile, &s); err != nil {
		return s, err
	}
	if !s.State.Over() && look(s.Process) == Dead {
		s.State = Lost
	}
	return s, nil
}

// ReadSummary reads summary.json.
func ReadSummary(directory string) (s Summary, err error) {
	return s, read(directory, SummaryFile, &s)
}

func read(directory, name string, into any) error {
	file := filepath.Join(directory, name)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return runner.Errorf(runner.NotFound, "read %s: no such file", file)
	}
	if err != nil {
		return runner.Errorf(runner.Unavailable, "read %s: %w", file, err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return runner.Errorf(runner.Invalid, "read %s: %w", file, err)
	}
	return nil
}
