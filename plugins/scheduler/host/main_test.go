package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// TestMain turns this binary into a plugin, good or bad, or the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "plugin" && os.Args[2] == "old" {
		becomeElder(os.Args[3:])
	}
	if len(os.Args) > 3 && os.Args[1] == "plugin" && os.Args[2] == "talker" {
		becomeTalker(os.Args[3])
	}
	if len(os.Args) > 2 && os.Args[1] == "plugin" {
		become(os.Args[2])
	}
	goleak.VerifyTestMain(m)
}

// become is the plugin called which. It never returns.
func become(which string) {
	switch which {
	case "none":
		fmt.Println("usage: none [flags]")
	case "exits":
		fmt.Fprintln(os.Stderr, "no licence found")
		os.Exit(3)
	case "silent":
		select {}
	case "old-version":
		fmt.Printf("1|7|unix|%s/s|grpc|\n", os.Getenv("PLUGIN_UNIX_SOCKET_DIR"))
		select {}
	case "evil-address":
		fmt.Println("1|1|unix|/run/somebody-else.sock|grpc|")
		select {}
	case "prints-first":
		fmt.Println("Welcome to FancyScheduler 3.0")
		scheduler.Serve(good{which})
	default:
		scheduler.Serve(good{which})
	}
	os.Exit(0)
}

// hoard is what a plugin keeps.
var hoard []byte

// good does everything as it should, but for what its name says.
type good struct{ which string }

func (g good) Info() scheduler.Info {
	switch g.which {
	case "hang-info":
		select {}
	case "ends-in-info":
		os.Exit(6)
	case "floods":
		chunk := bytes.Repeat([]byte("a line of a log that nobody reads\n"), 1<<15)
		for range 64 { // 70 MB
			os.Stderr.Write(chunk)
		}
	case "misnamed":
		return scheduler.Info{Name: "Not A Name", Version: "1"}
	case "painted":
		return scheduler.Info{Name: "good", Version: "1\x1b[31m"}
	case "reveals":
		var said []string
		for _, e := range os.Environ() {
			name, _, _ := strings.Cut(e, "=")
			said = append(said, name)
		}
		fds, _ := os.ReadDir("/proc/self/fd")
		for _, f := range fds {
			at, _ := os.Readlink("/proc/self/fd/" + f.Name())
			said = append(said, at)
		}
		fmt.Fprintln(os.Stderr, "revealed", strings.Join(said, " "))
	}
	return scheduler.Info{Name: "good", Version: "1.2.3"}
}

func (good) Schema() []scheduler.Field {
	return []scheduler.Field{{Key: "depth", Type: scheduler.Int, Default: 4, Min: scheduler.Bound(1), Max: scheduler.Bound(9), Doc: "how deep"},
		{Key: "mode", Type: scheduler.Text, Default: "a", OneOf: []string{"a", "b"}, Doc: "which way"}}
}

func (g good) Configure(_ context.Context, c scheduler.Config) error {
	var into struct {
		Depth int    `msgpack:"depth"`
		Mode  string `msgpack:"mode"`
	}
	if err := c.Decode(&into); err != nil {
		return err
	}
	if g.which == "refuses" {
		return scheduler.Errorf(runner.Invalid, "depth %d does not go with mode %s", into.Depth, into.Mode).WithHint("use mode b")
	}
	return nil
}

func (g good) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	out := scheduler.First(q)
	slices.Reverse(out)
	switch g.which {
	case "million":
		return make([]runner.Sample, 1_000_000), nil
	case "huge":
		out := make([]runner.Sample, 3_000_000)
		for i := range out {
			out[i] = 1 << 31
		}
		return out, nil
	case "duplicates":
		out[1] = out[0]
	case "drops":
		return out[1:], nil
	case "invents":
		out[0] = 4_000_000
	case "late":
		<-ctx.Done()
	case "drowns":
		for line := bytes.Repeat([]byte("a line of a log that nobody reads\n"), 100); ctx.Err() == nil; {
			_, _ = os.Stderr.Write(line)
		}
	case "leaks":
		for range 1000 {
			go func() { select {} }()
		}
	case "hoards":
		hoard = bytes.Repeat([]byte{1}, 256<<20)
	case "dies":
		os.Exit(4)
	case "panics":
		panic("the loss is not known")
	case "errs":
		return nil, scheduler.Errorf(runner.Exhausted, "no samples for the moment").WithHint("wait")
	}
	return out, nil
}

func (g good) Assign(_ context.Context, q scheduler.AssignRequest) (runner.Worker, error) {
	if g.which == "dead-target" {
		return runner.Worker{Role: runner.Target, Rank: 7}, nil
	}
	return q.Free[len(q.Free)-1], nil
}

func (g good) Place(_ context.Context, q scheduler.PlaceRequest) (out []scheduler.Placement, err error) {
	for i, n := range q.Needs {
		out = append(out, scheduler.Placement{Worker: n.Worker, Device: q.Devices[i%len(q.Devices)].ID})
	}
	if g.which == "pairs" {
		return make([]scheduler.Placement, 1_000_000), nil
	}
	return out, nil
}

func (good) OnFailure(_ context.Context, q scheduler.FailureRequest) (scheduler.Verdict, error) {
	return scheduler.Verdict{Decision: scheduler.Restart}, nil
}

// Observe writes what it is told to a file that the test reads.
func (good) Observe(e scheduler.Event) {
	fmt.Fprintln(os.Stderr, "observed", e.Number, e.Name)
}

// entry is this binary as the plugin called which.
func entry(t testing.TB, which string) Entry {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e, err := Pin(self, "plugin", which)
	if err != nil {
		t.Fatal(err)
	}
	e.Name = "good"
	return e
}

// options bear little, so that tests are quick.
func options(t *testing.T) Options {
	o := Defaults()
	o.Directory = short(t)
	o.Start, o.Call, o.Flush = time.Minute, time.Minute, time.Minute // under -race a million placements take a while
	o.LogPath = func(start int) string { return filepath.Join(o.Directory, fmt.Sprintf("log.%d", start)) }
	return o
}

// short makes a directory whose path leaves room for a socket's.
func short(t testing.TB) string {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// started starts a plugin that the test's end closes.
func started(t *testing.T, which string, o Options) *Plugin {
	t.Helper()
	p, err := Start(t.Context(), entry(t, which), o)
	if err != nil {
		t.Fatalf("start %s: %v", which, err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close %s: %v", which, err)
		}
		left, _ := filepath.Glob(filepath.Join(o.Directory, "p-*"))
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return p
}

// ask is a question with an answer.
func ask() scheduler.ArrangeRequest {
	q := scheduler.ArrangeRequest{Epoch: 1, Count: 3, Left: 5, Total: 5, Sources: []scheduler.Source{{Name: "x"}}}
	for i := range 5 {
		q.Pool = append(q.Pool, scheduler.Candidate{Sample: runner.Sample(10 + i), Tokens: 8, Supervised: 4, Anchors: 3})
	}
	return q
}
