package pyenv

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tiny is a lock of one small package, with the hashes of the real one.
func tiny(t *testing.T) Spec {
	t.Helper()
	if testing.Short() {
		t.Skip("makes an environment, which takes several seconds")
	}
	i := bytes.Index(python.Requirements, []byte("\niniconfig=="))
	if i < 0 {
		t.Fatal("the lock has no iniconfig any more: name another small package here")
	}
	rest := python.Requirements[i+1:]
	return Spec{CacheDir: t.TempDir(), Name: "tiny", Lock: rest[:bytes.Index(rest, []byte("    # via"))]}
}

// record collects progress.
type record struct {
	mu   sync.Mutex // guards below
	said []string
}

func (r *record) add(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, p.Stage+": "+p.Message)
}

func (r *record) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.said, "\n")
}

func ensureT(t *testing.T, s Spec, want string) *Env {
	t.Helper()
	var r record
	e, err := Ensure(t.Context(), s, r.add)
	if err != nil {
		t.Fatalf("%v\nhint: %s\n%s", err, runner.HintOf(err), r.text())
	}
	if made := want != ""; e.Made != made || made && !strings.Contains(r.text(), want) || !made && r.text() != "" {
		t.Errorf("made %v, progress:\n%s\nwant %q", e.Made, r.text(), want)
	}
	return e
}

// One life of an environment: made, found again, damaged while in use, repaired.
func TestEnsure(t *testing.T) {
	s := tiny(t)
	e := ensureT(t, s, "no environment yet")
	i, err := ask(t.Context(), e.Python, os.Environ(), withPackages)
	if err != nil || i.Packages["iniconfig"] == "" || i.Prefix != e.Dir {
		t.Fatalf("the environment does not work: %+v %v", i, err)
	}
	again := ensureT(t, s, "") // shares the lock
	if again.Fingerprint != e.Fingerprint || again.Python != e.Python || len(e.Fingerprint) != 64 {
		t.Errorf("got %+v after %+v", again, e)
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(filepath.Dir(e.Python)), "lib", "python3."+strings.Split(e.Version, ".")[1], "site-packages", "iniconfig")); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(t.Context(), s, nil); runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), "iniconfig is missing, and other runs are using it") {
		t.Errorf("damaged and in use: got %v", err)
	}
	for _, e := range []*Env{e, again} {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e = ensureT(t, s, "damaged: iniconfig is missing; making it anew")
	defer e.Close()
	if i, err := ask(t.Context(), e.Python, os.Environ(), withPackages); err != nil || i.Packages["iniconfig"] == "" {
		t.Errorf("not repaired: %+v %v", i, err)
	}
}

// Several runs at once: one makes it, the others wait for that. The first try
// is cut off half way.
func TestEnsureHalfMadeAndConcurrent(t *testing.T) {
	s := tiny(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Ensure(ctx, s, func(p Progress) {
		if p.Stage == "packages" {
			cancel()
		}
	})
	if runner.KindOf(err) != runner.Canceled {
		t.Fatalf("cut off: got %v", err)
	}
	var r record
	var wg sync.WaitGroup
	made := make(chan bool, 3)
	for range cap(made) {
		wg.Go(func() {
			e, err := Ensure(t.Context(), s, r.add)
			if err != nil {
				t.Error(err)
				made <- false
				return
			}
			made <- e.Made
			e.Close()
		})
	}
	wg.Wait()
	n := 0
	for range cap(made) {
		if <-made {
			n++
		}
	}
	if n != 1 || strings.Count(r.text(), "half made: it has no stamp; making it anew") != 1 {
		t.Errorf("made %d times, want 1:\n%s", n, r.text())
	}
}

// Port 9 of the loopback answers nobody.
const nowhere = "http://127.0.0.1:9/simple"

func TestEnsureWithoutNetwork(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"nothing can be fetched", map[string]string{"PIP_INDEX_URL": nowhere, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1", "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "0"}, "install uv: no answer from the package index; missing: iniconfig"},
		{"uv is there, packages are not", map[string]string{"UV_DEFAULT_INDEX": nowhere, "UV_HTTP_RETRIES": "0"}, "install packages: no answer from the package index; missing: iniconfig"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			s := tiny(t)
			_, err := Ensure(t.Context(), s, nil)
			if runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			if hint := runner.HintOf(err); !strings.Contains(hint, "PIP_INDEX_URL") {
				t.Errorf("hint: got %q", hint)
			}
		})
	}
}

func TestEnsureWithoutRoom(t *testing.T) {
	s := tiny(t)
	s.NeedBytes = 1 << 60
	if _, err := Ensure(t.Context(), s, nil); runner.KindOf(err) != runner.Exhausted || runner.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
}

// The environment of workers is really made, and holds what they import.
func TestEnsureWorker(t *testing.T) {
	e, err := Ensure(t.Context(), Worker("", ""), func(p Progress) { t.Log(p.Stage, p.Message) })
	if err != nil {
		t.Fatalf("%v\n%s", err, runner.HintOf(err))
	}
	defer e.Close()
	own, err := Ensure(t.Context(), Worker("", e.Python), nil) // as an existing interpreter
	if err != nil || len(own.Warnings) != 0 || own.Made {
		t.Errorf("got %+v, %v", own, err)
	}
	if e, err := Ensure(t.Context(), Worker("", ""), func(p Progress) { t.Errorf("second time: %v", p) }); err != nil || e.Made {
		t.Errorf("second time: %+v, %v", e, err)
	} else {
		e.Close()
	}
}
