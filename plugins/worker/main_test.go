package worker_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/dflash-runner/dflash-runner/plugins/worker/workertest"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
)

// TestMain turns this binary into a misbehaving worker, a host, or the tests.
func TestMain(m *testing.M) {
	if which := workertest.Wanted(); which != "" {
		become(which)
	}
	goleak.VerifyTestMain(m)
}

// The raw streams: go-plugin replaces os.Stdout and os.Stderr of a worker. Made
// once, since a file that is collected closes its descriptor.
var (
	rawStdout = sync.OnceValue(func() *os.File { return os.NewFile(1, "stdout") })
	rawStderr = sync.OnceValue(func() *os.File { return os.NewFile(2, "stderr") })
)

// hang blocks for ever; SIGUSR2 is answered by workertest's handler.
func hang(context.Context) { select {} }

// become is the worker, host or job called which. It never returns.
func become(which string) {
	if script, ok := early[which]; ok {
		script()
		os.Exit(0)
	}
	w, ok := workers[which]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such worker:", which)
		os.Exit(99)
	}
	workertest.Main(w)
}

// early scripts never reach the control plane as a worker should.
var early = map[string]func(){
	"traceback": func() {
		fmt.Fprint(os.Stderr, "Traceback (most recent call last):\n  File \"serve.py\", line 3, in <module>\n    import torch\nModuleNotFoundError: No module named 'torch'\n")
		os.Exit(1)
	},
	"exit-7":  func() { fmt.Fprintln(os.Stderr, "out of luck"); os.Exit(7) },
	"exit-70": func() { os.Exit(70) },
	"old-version": func() {
		fmt.Printf("1|2|unix|%s/worker.sock|grpc\n", os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
		hang(context.Background())
	},
	"evil-address": func() { fmt.Println("1|1|unix|/run/somebody-else.sock|grpc"); hang(context.Background()) },
	"netrpc": func() {
		fmt.Printf("1|1|unix|%s/s|netrpc\n", os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
		hang(context.Background())
	},
	"silent": func() { signal.Ignore(syscall.SIGTERM); hang(context.Background()) },
	"impostor": func() { // a child of the worker listens in its place
		address := filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "s")
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), workertest.EnvName+"=listener", "ADDRESS="+address)
		out, _ := c.StdoutPipe()
		_ = c.Start()
		_, _ = out.Read(make([]byte, 8))
		fmt.Printf("1|1|unix|%s|grpc\n", address)
		hang(context.Background())
	},
	"listener": func() {
		l, err := net.Listen("unix", os.Getenv("ADDRESS"))
		if err != nil {
			os.Exit(9)
		}
		fmt.Println("ready")
		for {
			if _, err := l.Accept(); err != nil {
				os.Exit(9)
			}
		}
	},
	"host": host,
	"job":  job,
}

// workers reach the control plane and misbehave there.
var workers = map[string]workertest.Worker{
	"good":      {},
	"banner":    bannered(),
	"flood-out": {Describe: func(context.Context, *workerv1.Description) error { return floodStdout() }},
	"bad-log": {Describe: func(context.Context, *workerv1.Description) error {
		for _, l := range []string{`{"@message":5}`, `{"@message":"x","@level":["a"]}`, `{"@level":"info","@timestamp":12}`, `null`, `[1]`,
			`{"@level":"info","@message":"good line","worker":"forged/9","step":7}`} {
			fmt.Fprintln(rawStderr(), l)
		}
		return nil
	}},
	"long-line": {Describe: func(context.Context, *workerv1.Description) error {
		chunk := strings.Repeat("e", 1<<20)
		for range 20 {
			fmt.Fprint(rawStderr(), chunk)
		}
		fmt.Fprintln(rawStderr(), "\nafter the long line")
		return nil
	}},
	"hang-describe": {Describe: func(ctx context.Context, _ *workerv1.Description) error { hang(ctx); return nil }},
	"hang-configure": {Configure: func(ctx context.Context, _ *workerv1.Configuration) error {
		fmt.Fprintln(rawStderr(), "configuring")
		hang(ctx)
		return nil
	}},
	"hang-warm-up": {WarmUp: func(ctx context.Context, _ *workerv1.Certificate) error { hang(ctx); return nil }},
	"refuse": {Configure: func(ctx context.Context, _ *workerv1.Configuration) error {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("dflash-runner-kind", "invalid", "dflash-runner-hint-bin", "check the target directory"))
		return status.Error(codes.InvalidArgument, "configure: build target: hidden size: want 64, got 32")
	}},
	"wrong-pid":  {Describe: func(_ context.Context, d *workerv1.Description) error { d.Pid++; return nil }},
	"wrong-lane": {Describe: func(_ context.Context, d *workerv1.Description) error { d.LaneVersion = 9; return nil }},
	"huge": {Describe: func(_ context.Context, d *workerv1.Description) error {
		d.Python = strings.Repeat("x", 2<<20)
		return nil
	}},
	"deadlock": {WarmUp: func(context.Context, *workerv1.Certificate) error {
		var mu sync.Mutex
		mu.Lock()
		mu.Lock() // for ever
		return nil
	}},
	"compute": {WarmUp: func(ctx context.Context, _ *workerv1.Certificate) error {
		for ctx.Err() == nil { // not for ever, for a host that forgets it
			_ = fmt.Sprint(os.Getpid())
		}
		return nil
	}},
	"child-computes": {WarmUp: func(ctx context.Context, _ *workerv1.Certificate) error {
		return exec.Command("sh", "-c", "while :; do :; done").Run()
	}},
	"stray-computes": {WarmUp: func(ctx context.Context, _ *workerv1.Certificate) error {
		return exec.Command("setsid", "-w", "sh", "-c", "while :; do :; done").Run()
	}},
	"die-in-warm-up": {WarmUp: func(context.Context, *workerv1.Certificate) error {
		fmt.Fprintln(rawStderr(), `{"@level":"error","@message":"warm-up failed","traceback":"Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nRuntimeError: no kernel"}`)
		os.Exit(1)
		return nil
	}},
	"flood-err": {Describe: func(context.Context, *workerv1.Description) error { return floodStderr() }},
	"deaf":      {Lane: func(conn *net.UnixConn, _ *workerv1.Configuration) { _ = conn.Close(); hang(context.Background()) }},
	"stubborn":  {Terminate: func() {}},
	"child":     {Describe: func(_ context.Context, d *workerv1.Description) error { return spawn(d, false) }},
	"escape":    {Describe: func(_ context.Context, d *workerv1.Description) error { return spawn(d, true) }},
	"lane": {Lane: func(conn *net.UnixConn, _ *workerv1.Configuration) {
		buffer := make([]byte, 64)
		n, _ := conn.Read(buffer)
		_, _ = conn.Write(append([]byte("echo "), buffer[:n]...))
		_, _ = conn.Read(buffer) // until the host closes it
	}},
}

// bannered prints before the handshake, as an import may.
func bannered() workertest.Worker {
	if workertest.Wanted() == "banner" {
		fmt.Print("Welcome to FancyLib 3.0\na|b|c|d|e\n1|1|unix\n")
	}
	return workertest.Worker{}
}

// floodStdout writes 13 MB to a stdout that go-plugin would have stopped reading.
func floodStdout() error {
	out := rawStdout()
	if _, err := out.WriteString(strings.Repeat("y", 200_000) + "\n"); err != nil {
		return err
	}
	chunk := strings.Repeat("z", 1<<16)
	for range 200 {
		if _, err := out.WriteString(chunk); err != nil {
			return err
		}
	}
	_, err := out.WriteString("\n1|1|unix|/second/handshake|grpc\n")
	return err
}

// floodStderr writes so many MiB of lines as it is told.
func floodStderr() error {
	mib, err := strconv.Atoi(os.Getenv("HF_FLOOD_MIB"))
	if err != nil {
		return err
	}
	chunk := strings.Repeat("line "+strings.Repeat("x", 250)+"\n", 4096) // 1 MiB
	for range mib {
		if _, err := rawStderr().WriteString(chunk); err != nil {
			return err
		}
	}
	return nil
}

// spawn starts a child that holds the worker's pipes, in its group or out of it.
func spawn(d *workerv1.Description, escape bool) error {
	c := exec.Command("sleep", "300")
	c.Stdout, c.Stderr = rawStdout(), rawStderr()
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: escape}
	if err := c.Start(); err != nil {
		return err
	}
	d.Environment["child"] = strconv.Itoa(c.Process.Pid)
	return nil
}
