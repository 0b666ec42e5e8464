package workertest

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// Spec gives what starts this test binary again as the worker called which. Its
// runtime directory is removed, and must be empty, at the test's end.
func Spec(t testing.TB, life runner.Life, which string) worker.Spec {
	t.Helper()
	role := workerv1.Role_ROLE_TARGET
	if life.Worker.Role == runner.Drafter {
		role = workerv1.Role_ROLE_DRAFTER
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return worker.Spec{
		Life: life, Argv: []string{program}, Env: []string{EnvName + "=" + which},
		Configuration: Configuration(role, uint32(life.Worker.Rank), uint32(life.Generation)),
		RuntimeDir:    RuntimeDir(t), Device: "cpu",
		StartTimeout: 20 * time.Second, DescribeTimeout: 10 * time.Second, ConfigureTimeout: 10 * time.Second,
		Grace: 5 * time.Second, PingEvery: 50 * time.Millisecond,
		Logger: hclog.NewNullLogger(), Nonce: "test-" + strings.ReplaceAll(t.Name(), "/", "-"),
	}
}

// RuntimeDir makes a short private directory for sockets (t.TempDir's path is
// too long for one) and checks at the test's end that nothing was left in it.
func RuntimeDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dfr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		for _, e := range left {
			t.Errorf("left in the runtime directory: %s", e.Name())
		}
		os.RemoveAll(dir)
	})
	return dir
}
