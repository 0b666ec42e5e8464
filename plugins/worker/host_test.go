package worker_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/plugins/worker/workertest"
	"github.com/dflash-runner/dflash-runner/runner"
)

// host launches the worker that HOST_WORKER names, says which processes there
// are, and waits to be killed.
func host() {
	program, _ := os.Executable()
	p, err := worker.Launch(context.Background(), worker.Spec{
		Life: life, Argv: []string{program}, Env: []string{workertest.EnvName + "=" + os.Getenv("HOST_WORKER")},
		Configuration: workertest.Configuration(2, 1, 3), RuntimeDir: os.Getenv("HOST_DIR"), Device: "cpu",
		StartTimeout: 20 * time.Second, DescribeTimeout: 10 * time.Second, ConfigureTimeout: 10 * time.Second,
		Grace: time.Second, Logger: hclog.NewNullLogger(), Nonce: "host",
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("pids", p.Pid(), p.Description().GetEnvironment()["child"])
	hang(context.Background())
}

// TestI8_NoProcessOutlivesTheSupervisor: a host that is itself killed with
// SIGKILL takes its worker and the worker's child with it.
func TestI8_NoProcessOutlivesTheSupervisor(t *testing.T) {
	dir, err := os.MkdirTemp("", "dfr")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) // a killed host leaves its socket directory to gc
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), workertest.EnvName+"=host", "HOST_WORKER=child", "HOST_DIR="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	field := strings.Fields(line)
	if err != nil || len(field) != 3 || field[0] != "pids" {
		t.Fatalf("host said %q: %v", line, err)
	}
	c.Process.Kill()
	c.Wait()
	for _, f := range field[1:] {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		gone(t, pid, 5*time.Second)
	}
}

// job is a short-lived program that reads its input and prints lines.
func job() {
	input, _ := io.ReadAll(os.Stdin)
	switch os.Getenv("JOB") {
	case "echo":
		fmt.Printf("{\"bytes\":%d}\nsecond\n", len(input))
	case "fail":
		fmt.Fprintln(os.Stderr, "Traceback (most recent call last):\n  File \"job.py\", line 1\nFileNotFoundError: corpus")
		os.Exit(1)
	case "long":
		fmt.Println(strings.Repeat("x", 2<<20))
		hang(context.Background())
	case "hang":
		fmt.Println("hanging")
		hang(context.Background())
	case "deaf":
		os.Stdin.Close()
	}
}

func runJob(t *testing.T, ctx context.Context, which string, input []byte, onLine func([]byte)) error {
	t.Helper()
	return worker.RunJob(ctx, worker.JobSpec{
		Argv: []string{os.Args[0]}, Env: []string{workertest.EnvName + "=job", "JOB=" + which}, Stdin: input,
		Logger: hclog.NewNullLogger(), Grace: 2 * time.Second,
	}, onLine)
}

func TestJob(t *testing.T) {
	var lines []string
	keep := func(b []byte) { lines = append(lines, string(b)) }
	if err := runJob(t, t.Context(), "echo", bytes.Repeat([]byte("a"), 300_000), keep); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(lines, ";"); got != `{"bytes":300000};second` {
		t.Errorf("lines: %q", got)
	}
}

func TestJobFailures(t *testing.T) {
	for _, c := range []struct {
		which   string
		cause   runner.Cause
		message string
		kind    runner.Kind
	}{
		{"fail", runner.CausePython, "FileNotFoundError: corpus", runner.Unavailable},
		{"long", runner.CauseProtocol, "printed a line of more than", runner.Unavailable},
		{"hang", runner.CauseKilled, "ended by the supervisor", runner.Canceled},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		err := runJob(t, ctx, c.which, nil, func([]byte) { cancel() })
		cancel()
		var failed *worker.JobError
		if !errors.As(err, &failed) {
			t.Fatalf("%s: %v", c.which, err)
		}
		if f := failed.Failure; f.Cause != c.cause || !strings.Contains(f.Message, c.message) || runner.KindOf(err) != c.kind {
			t.Errorf("%s: cause %q, message %q, kind %v", c.which, f.Cause, f.Message, runner.KindOf(err))
		}
	}
	err := worker.RunJob(t.Context(), worker.JobSpec{Argv: []string{"/no/such/python"}, Logger: hclog.NewNullLogger(), Grace: time.Second}, nil)
	var failed *worker.JobError
	if !errors.As(err, &failed) || failed.Failure.Cause != runner.CauseLaunch {
		t.Errorf("a program that is not there: %v", err)
	}
}
