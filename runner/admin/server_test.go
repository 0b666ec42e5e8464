package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// source is a run that remembers what it was asked.
type source struct {
	mu    sync.Mutex // guards asked
	asked []string

	status Status
	refuse error
	more   chan []byte // events after the first two
}

func (s *source) note(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
	return s.refuse
}

func (s *source) Status() Status       { return s.status }
func (s *source) Stop(mode Mode) error { return s.note("stop " + string(mode)) }
func (s *source) Checkpoint() error    { return s.note("checkpoint") }
func (s *source) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "dflash_step 3") })
}

func (s *source) Events(ctx context.Context, after uint64, follow bool) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := after; i < 2; i++ {
			if !yield(fmt.Appendf(nil, `{"n":%d}`, i+1)) {
				return
			}
		}
		for follow {
			select {
			case <-ctx.Done():
				return
			case line := <-s.more:
				if !yield(line) {
					return
				}
			}
		}
	}
}

// serve runs a server over a run's directory until the test ends.
func serve(t *testing.T, directory string, src Source) {
	t.Helper()
	l, err := Listen(directory)
	if err != nil {
		t.Fatal(err)
	}
	s, done := NewServer(src), make(chan error, 1)
	go func() { done <- s.Serve(l) }() // ended by Shutdown, waited for below
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

func TestServerAnswers(t *testing.T) {
	for name, dir := range map[string]string{"short": t.TempDir(), "long": filepath.Join(t.TempDir(), strings.Repeat("long", 30))} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			src := &source{status: live(t), more: make(chan []byte)}
			src.status.UpdatedAt = time.Now()
			serve(t, dir, src)
			info, err := os.Stat(filepath.Join(dir, SocketName)) // through the link
			if err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != os.ModeSocket {
				t.Errorf("want a socket of mode 0600, got %v, %v", info, err)
			}
			converse(t, dir, src)
		})
	}
}

// converse asks everything once.
func converse(t *testing.T, dir string, src *source) {
	t.Helper()
	ctx := t.Context()
	shot, err := Open(ctx, dir)
	if err != nil || shot.Step != 3 || shot.Client == nil || shot.Note != "" {
		t.Fatalf("open: got %+v, %v", shot, err)
	}
	c := shot.Client
	if h, err := c.Health(ctx); err != nil || h.Status != Healthy {
		t.Errorf("health: got %+v, %v", h, err)
	}
	for _, err := range []error{c.Stop(ctx, Graceful), c.Stop(ctx, Quick), c.Checkpoint(ctx)} {
		if err != nil {
			t.Error(err)
		}
	}
	if err := c.Stop(ctx, "soon"); runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), `got "soon"`) {
		t.Errorf("bad mode: got %v", err)
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	if got := strings.Join(src.asked, ","); got != "stop graceful,stop quick,checkpoint" {
		t.Errorf("asked: got %s", got)
	}
}

func TestServerCarriesErrors(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, &source{refuse: runner.Errorf(runner.Exhausted, "publish: disk full").WithHint("make room")})
	c, err := Connect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Checkpoint(t.Context())
	if runner.KindOf(err) != runner.Exhausted || err.Error() != "publish: disk full" || runner.HintOf(err) != "make room" {
		t.Errorf("got %v (%s), hint %q", err, runner.KindOf(err), runner.HintOf(err))
	}
}

func TestServerStreamsEvents(t *testing.T) {
	dir := t.TempDir()
	src := &source{more: make(chan []byte)}
	serve(t, dir, src)
	c, err := Connect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, follow := range []bool{false, true} {
		body, err := c.Events(ctx, follow)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(body)
		for _, want := range []string{"{\"n\":1}\n", "{\"n\":2}\n"} {
			if got, err := r.ReadString('\n'); got != want {
				t.Errorf("want %s, got %s, %v", want, got, err)
			}
		}
		if follow { // arrives while the stream is open
			src.more <- []byte(`{"n":3}`)
			if got, err := r.ReadString('\n'); got != "{\"n\":3}\n" {
				t.Errorf("followed: got %s, %v", got, err)
			}
		} else if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("want the end, got %v", err)
		}
		_ = body.Close()
	}
}

// TestServerRefuses sends what no client of ours sends.
func TestServerRefuses(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, &source{})
	c, err := Connect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]struct {
		method, path, body string
		want               string
	}{
		"unknown path":       {"GET", "/v2/status", "", "404"},
		"wrong method":       {"GET", "/v1/stop", "", "405"},
		"empty body":         {"POST", "/v1/stop", "", "stop run: want"},
		"unknown field":      {"POST", "/v1/stop", `{"mode":"quick","x":1}`, "stop run: want"},
		"two objects":        {"POST", "/v1/stop", `{"mode":"quick"}{}`, "stop run: want"},
		"body too large":     {"POST", "/v1/stop", `{"mode":"` + strings.Repeat("x", maxBody) + `"}`, "stop run: want"},
		"after not a number": {"GET", "/v1/events?after=x", "", "want after=N"},
	} {
		resp, err := c.do(t.Context(), q.method, q.path, []byte(q.body))
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), q.want) {
			t.Errorf("%s: want an error with %q, got %v", name, q.want, err)
		}
	}
}

func TestListenRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SocketName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(dir); runner.KindOf(err) != runner.Invalid {
		t.Errorf("a file in its place: got %v", err)
	}
	_ = os.Remove(path)
	serve(t, dir, &source{})
	if _, err := Listen(dir); runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), "another process answers") {
		t.Errorf("taken: got %v", err)
	}
}

// TestListenAfterDeath: the socket that a killed supervisor left is no obstacle.
func TestListenAfterDeath(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	serve(t, dir, &source{})
}

func TestStrangersAreClosed(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.(*sameUser).allowed = os.Getuid() + 1
	accepted := make(chan error, 1)
	go func() { _, err := l.Accept(); accepted <- err }() // ended by Close, waited for below
	conn, err := net.Dial("unix", filepath.Join(dir, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("want the connection closed, got %v", err)
	}
	_ = conn.Close()
	_ = l.Close()
	if err := <-accepted; err == nil {
		t.Error("a stranger was let in")
	}
}
