package up

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/plugins/worker/workertest"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
	"github.com/dflash-runner/dflash-runner/runner/lane"
)

// TestMain turns the test's binary into a worker where the launcher started it,
// and into a scheduling plugin where a catalog says so.
func TestMain(m *testing.M) {
	if name := os.Getenv("DFLASH_RUNNER_LIFE"); name != "" {
		workertest.Main(workertest.Worker{Answer: answer, Lane: serve, WarmUp: tell})
	}
	if len(os.Args) > 2 && os.Args[1] == "plugin" {
		becomePlugin(os.Args[2:])
	}
	goleak.VerifyTestMain(m)
}

// tell lets the certificate name the whole environment.
func tell(_ context.Context, c *workerv1.Certificate) error {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		c.Environment[name] = value
	}
	return nil
}

func answer(cfg *workerv1.Configuration, a *workerv1.Configured) {
	if cfg.GetRole() == workerv1.Role_ROLE_DRAFTER {
		start := drivetest.Start()
		a.ParametersDigest = start[:]
	}
}

// serve is the model of a worker; its orders take some time, so that a signal
// finds it at work.
func serve(conn *net.UnixConn, cfg *workerv1.Configuration) {
	w := drivetest.Worker{ID: runner.Worker{Role: runner.Target, Rank: runner.Rank(cfg.GetRank())}, Died: func() { os.Exit(1) }}
	if cfg.GetRole() == workerv1.Role_ROLE_DRAFTER {
		w.ID.Role = runner.Drafter
	}
	never := make(chan struct{})
	w.Gone = never // a worker that hangs is killed
	trains := 0
	w.Fault = func(o runner.Order) drivetest.Fault {
		switch o.(type) {
		case runner.Produce, runner.Train, runner.Commit:
			time.Sleep(3 * time.Millisecond) // what the model's work costs
		}
		if device, ok := strings.CutPrefix(os.Getenv(faultVariable), "but on "); ok {
			if _, ok := o.(runner.Train); ok && w.ID.String() == "drafter/1" && os.Getenv("CUDA_VISIBLE_DEVICES") != device {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return ""
		}
		if _, ok := o.(runner.Train); ok && w.ID.String() == "drafter/1" && cfg.GetGeneration() == 1 {
			if trains++; trains == 5 {
				if os.Getenv(faultVariable) == "deaf" {
					_ = conn.Close()
					select {} // it lives on, and gives its signs of life
				}
				return drivetest.Fault(os.Getenv(faultVariable))
			}
		}
		return ""
	}
	if err := w.Serve(lane.New(conn)); err != nil {
		os.Exit(1)
	}
}
