package cache

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// tree makes files below a new directory.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		path := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, 10000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// hold locks a file as a run does, until the test ends.
func hold(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
}

func TestListAndRemove(t *testing.T) {
	root := tree(t, "targets/a/model", "targets/b/model", "python/worker-1/bin/python", "data/x/y/z")
	hold(t, filepath.Join(root, "python/worker-1.lock"))
	entries, err := List(root)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, e := range entries {
		text := e.Kind + "/" + e.Name
		if e.InUse {
			text += "!"
		}
		if e.Bytes < 10000 || e.Used.IsZero() {
			t.Errorf("%s: want a size and a time, got %+v", text, e)
		}
		got = append(got, text)
	}
	if strings.Join(got, " ") != "data/x python/worker-1! targets/a targets/b" {
		t.Errorf("got %v", got)
	}
	if err := Remove(entries[2]); err != nil {
		t.Error(err)
	}
	if err := Remove(entries[1]); runner.KindOf(err) != runner.Unavailable {
		t.Errorf("in use: got %v", err)
	}
	left, err := List(root)
	if err != nil || len(left) != 3 {
		t.Errorf("want three left, got %v, %v", left, err)
	}
	if none, err := List(filepath.Join(root, "missing")); none != nil || err != nil {
		t.Errorf("missing cache: got %v, %v", none, err)
	}
}

func TestLeftovers(t *testing.T) {
	root, run := tree(t, "targets/.removed-a/x", "targets/.tmp-new/x", "targets/good/x", "python/half.tmp/x"), t.TempDir()
	now := time.Now()
	for _, old := range []string{"targets/.removed-a", "python/half.tmp", "targets/good"} {
		at := now.Add(-2 * time.Hour)
		if err := os.Chtimes(filepath.Join(root, old), at, at); err != nil {
			t.Fatal(err)
		}
	}
	hold(t, filepath.Join(root, "python/half.tmp.lock")) // somebody is at it
	for _, name := range []string{"dead.sock", "live.sock", "plugin-dir1/dead", "plugin-dir2/dead", "plugin-dir3/live", "plugin-dir3/dead", "plugin-dir4/dead", "other5/dead"} {
		path := filepath.Join(run, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(name, "dead") {
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		} else {
			t.Cleanup(func() { _ = l.Close() })
		}
	}
	for _, name := range []string{"plugin-dir6", "plugin-dir7"} {
		if err := os.Mkdir(filepath.Join(run, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(run, "plugin-dir4/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hour := now.Add(-61 * time.Minute)
	for name, at := range map[string]time.Time{"plugin-dir2": hour, "plugin-dir3": hour, "plugin-dir4": hour, "other5": hour, "plugin-dir7": booted(now).Add(-61 * time.Minute)} {
		if err := os.Chtimes(filepath.Join(run, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	if !deserted(filepath.Join(run, "plugin-dir7"), now, now) || deserted(filepath.Join(run, "plugin-dir7"), now, booted(now).Add(-2*time.Hour)) {
		t.Error("an empty directory: want it deserted where it is older than the boot, and only there")
	}
	got := Leftovers(root, run, now)
	// 1 is new, 3 is alive, 4 holds something else, 6 is new and empty
	want := []string{filepath.Join(root, "targets/.removed-a"), filepath.Join(run, "dead.sock"), filepath.Join(run, "plugin-dir2"), filepath.Join(run, "plugin-dir7")}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("want %v, got %v", want, got)
	}
}

// TestMeasure: what an installer linked out of its own cache takes its place
// all the same, a file with two names counts once, and only names outside make
// a file shared.
func TestMeasure(t *testing.T) {
	root := tree(t, "python/a/own", "elsewhere/linked")
	dir := filepath.Join(root, "python/a")
	for from, to := range map[string]string{"elsewhere/linked": "python/a/lib", "python/a/own": "python/a/second name"} {
		if err := os.Link(filepath.Join(root, from), filepath.Join(root, to)); err != nil {
			t.Fatal(err)
		}
	}
	blocks := func(path string) uint64 {
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil {
			t.Fatal(err)
		}
		return uint64(s.Blocks) * 512
	}
	e := Entry{Path: dir}
	e.measure()
	own, lib := blocks(filepath.Join(dir, "own")), blocks(filepath.Join(dir, "lib"))
	if want := blocks(dir) + own + lib; own < 10000 || e.Bytes != want || e.Shared != lib || e.Used.IsZero() {
		t.Errorf("want %d bytes, %d of them shared, got %+v", want, lib, e)
	}
}

// TestWhatIsBeingMadeIsInUse: what a maker has written so far goes by the lock
// of the entry that it will be.
func TestWhatIsBeingMadeIsInUse(t *testing.T) {
	root := tree(t, "targets/.a.partial-x1/model", "targets/.b.partial-x2/model", "data/a/.train.partial-x3/data")
	hold(t, filepath.Join(root, "targets/a.lock"))
	hold(t, filepath.Join(root, "data/a.lock"))
	entries, err := List(root)
	if err != nil || len(entries) != 3 {
		t.Fatalf("got %+v, %v", entries, err)
	}
	for _, e := range entries {
		used := e.Name != ".b.partial-x2"
		if e.InUse != used {
			t.Errorf("%s: want in use %v", e.Name, used)
		}
		err := Remove(e)
		if _, gone := os.Stat(e.Path); (err != nil) != used || (gone == nil) != used {
			t.Errorf("%s: want it kept %v, got %v, %v", e.Name, used, err, gone)
		}
		if used && runner.KindOf(err) != runner.Unavailable {
			t.Errorf("%s: got %v", e.Name, err)
		}
	}
}
