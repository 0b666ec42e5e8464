package worker

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// runtimeDirLimit leaves room in a socket's path (108 bytes) for go-plugin's
// directory (21 bytes) and the worker's own name (17).
const runtimeDirLimit = 68

// Spec says which worker to start and how long each part may take.
type Spec struct {
	Life          runner.Life
	Argv          []string // absolute or found in PATH
	Env           []string // set by the supervisor; wins over what is inherited
	Dir           string
	Configuration *workerv1.Configuration
	LogPath       string // raw stderr; "" keeps none
	RuntimeDir    string // existing, 0700, ours: sockets live below it
	Device        string // for the report

	StartTimeout     time.Duration // until the handshake line
	DescribeTimeout  time.Duration
	ConfigureTimeout time.Duration
	Grace            time.Duration // from SIGTERM to SIGKILL
	PingEvery        time.Duration // 0: one second

	Logger hclog.Logger
	Nonce  string // of the run: with the life it marks every descendant
}

// mark gives the value of DFLASH_NONCE: different for every life, so that the
// sweep after one death never touches another life.
func (s *Spec) mark() string { return s.Nonce + ":" + s.Life.String() }

// check refuses a spec that could not be started safely.
func (s *Spec) check() error {
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"start", s.StartTimeout}, {"describe", s.DescribeTimeout}, {"configure", s.ConfigureTimeout}, {"grace", s.Grace}} {
		if d.d <= 0 {
			return runner.Errorf(runner.Invalid, "check worker spec: %s time: want more than 0, got %v", d.name, d.d)
		}
	}
	switch {
	case len(s.Argv) == 0:
		return runner.Errorf(runner.Invalid, "check worker spec: command: want a program, got none")
	case s.Configuration == nil:
		return runner.Errorf(runner.Invalid, "check worker spec: configuration: want one, got none")
	case s.Logger == nil:
		return runner.Errorf(runner.Invalid, "check worker spec: logger: want one, got none")
	case s.Nonce == "":
		return runner.Errorf(runner.Invalid, "check worker spec: nonce: want one, got none")
	case s.PingEvery < 0:
		return runner.Errorf(runner.Invalid, "check worker spec: ping interval: want 0 or more, got %v", s.PingEvery)
	}
	return checkRuntimeDir(s.RuntimeDir)
}

// checkRuntimeDir refuses a directory that others may enter: sockets in it
// carry no secret but their place.
func checkRuntimeDir(dir string) error {
	if len(dir) > runtimeDirLimit {
		return runner.Errorf(runner.Invalid, "check runtime directory: %s: want at most %d bytes, got %d", dir, runtimeDirLimit, len(dir)).
			WithHint("set XDG_RUNTIME_DIR to a shorter path")
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return runner.Errorf(runner.Invalid, "check runtime directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || info.Mode().Perm()&0o077 != 0 || int(stat.Uid) != os.Getuid() {
		return runner.Errorf(runner.Invalid, "check runtime directory: %s: want a directory of uid %d with mode 0700, got %s of uid %s",
			dir, os.Getuid(), info.Mode(), uidOf(stat, ok))
	}
	return nil
}

func uidOf(stat *syscall.Stat_t, ok bool) string {
	if !ok {
		return "unknown"
	}
	return fmt.Sprint(stat.Uid)
}
