package kernels

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

func facts() Facts {
	return Facts{Torch: "2.11.0", Triton: "3.6.0", GPUs: []string{"NVIDIA H200"}, Driver: "580.65.06", Shapes: map[string]any{"buckets": []int{3072}}}
}

// on gives a statfs that says that everything from a path on is of that kind,
// and that what lies below it is not there yet.
func on(path string, kind int64) statfs {
	return func(asked string, s *unix.Statfs_t) error {
		if asked != path && strings.HasPrefix(asked, path) {
			return fs.ErrNotExist
		}
		s.Type = kind
		return nil
	}
}

// TestNetworkIsRefused: every file system over a network, and no local one.
func TestNetworkIsRefused(t *testing.T) {
	for kind, name := range map[int64]string{
		0x6969: "NFS", 0xFF534D42: "CIFS", 0xFE534D42: "SMB", 0x517B: "SMB", 0x65735546: "FUSE", 0x0BD00BD0: "Lustre",
		0x47504653: "GPFS", 0x00C36400: "Ceph", 0x01021997: "9P", 0x19830326: "BeeGFS", 0x5346414F: "AFS", 0xAAD7AAEA: "PanFS",
		0xEF53: "", 0x58465342: "", 0x9123683E: "", 0x01021994: "", 0x794C7630: "", 0x2FC12FC1: "", // ext4, xfs, btrfs, tmpfs, overlay, zfs
	} {
		root := t.TempDir()
		for _, k := range []int64{kind, int64(int32(kind))} { // where the kernel's word is signed
			c, err := open(root, facts(), on(root, k))
			if name == "" {
				if err != nil {
					t.Errorf("%#x: %v", kind, err)
				}
				c.Close()
				continue
			}
			if runner.KindOf(err) != runner.Exhausted || !strings.Contains(err.Error(), "want a disk of this machine, got "+name) || !strings.Contains(runner.HintOf(err), "warmup.cache_directory") {
				t.Errorf("%#x: want %s refused, got %v, hint %q", kind, name, err, runner.HintOf(err))
			}
			if left, _ := os.ReadDir(root); len(left) != 0 {
				t.Errorf("%s: left behind: %v", name, left)
			}
		}
	}
	failing := statfs(func(string, *unix.Statfs_t) error { return unix.EIO })
	if _, err := open(t.TempDir(), facts(), failing); runner.KindOf(err) != runner.Unavailable || !errors.Is(err, unix.EIO) {
		t.Errorf("no answer: got %v", err)
	}
}

// TestName: everything in the facts changes the name, and nothing else does.
func TestName(t *testing.T) {
	name := func(f Facts) string {
		n, err := f.Name()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	same := name(facts())
	if name(facts()) != same || len(same) != 16 {
		t.Errorf("got %s, then %s", same, name(facts()))
	}
	changed := []func(*Facts){
		func(f *Facts) { f.Torch = "2.12.0" }, func(f *Facts) { f.Triton = "3.7.0" }, func(f *Facts) { f.GPUs = []string{"NVIDIA H100"} },
		func(f *Facts) { f.Driver = "590.1" }, func(f *Facts) { f.Shapes = map[string]any{"buckets": []int{4096}} },
	}
	if want := reflect.TypeFor[Facts]().NumField(); len(changed) != want {
		t.Fatalf("want a change for each of %d fields, got %d", want, len(changed))
	}
	for i, change := range changed {
		f := facts()
		change(&f)
		if name(f) == same {
			t.Errorf("change %d: the same name", i)
		}
	}
	for i, empty := range []func(*Facts){func(f *Facts) { f.Torch = "" }, func(f *Facts) { f.Triton = "" }, func(f *Facts) { f.GPUs = nil }, func(f *Facts) { f.Driver = "" }} {
		f := facts()
		empty(&f)
		if _, err := f.Name(); runner.KindOf(err) != runner.NotFound {
			t.Errorf("nothing known, %d: got %v", i, err)
		}
	}
}

func TestOpen(t *testing.T) {
	root := t.TempDir()
	c, err := Open(root, facts())
	if err != nil {
		t.Fatal(err)
	}
	name, _ := facts().Name()
	if want := filepath.Join(root, Kind, name); c.Dir != want {
		t.Errorf("want %s, got %s", want, c.Dir)
	}
	if env := c.Environment(); !slices.Equal(env, []string{"TORCHINDUCTOR_CACHE_DIR=" + c.Dir + "/inductor", "TRITON_CACHE_DIR=" + c.Dir + "/triton"}) {
		t.Errorf("environment: got %v", env)
	}
	for _, part := range []string{"inductor", "triton", factsFile} {
		if _, err := os.Stat(filepath.Join(c.Dir, part)); err != nil {
			t.Error(err)
		}
	}
	again, err := Open(root, facts()) // another run beside it
	if err != nil {
		t.Fatal(err)
	}
	if tryExclusive(t, c.Dir) {
		t.Error("held by two: could be removed")
	}
	again.Close()
	c.Close()
	if !tryExclusive(t, c.Dir) {
		t.Error("held by nobody: could not be removed")
	}
}

func tryExclusive(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.OpenFile(dir+".lock", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// TestOpenRefuses: an entry that others can write to holds code that would run.
func TestOpenRefuses(t *testing.T) {
	root := t.TempDir()
	c, err := Open(root, facts())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := os.Chmod(c.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(root, facts()); runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), "alone may write to") {
		t.Errorf("writable by all: got %v", err)
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), c.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(root, facts()); runner.KindOf(err) != runner.Invalid {
		t.Errorf("a link: got %v", err)
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, facts()); err == nil {
		t.Error("a file for a root: no error")
	}
	if f, err := os.OpenFile(c.Dir+".lock", os.O_RDWR, 0); err != nil || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		t.Fatal(err)
	} else {
		defer f.Close()
	}
	if _, err := Open(root, facts()); runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), "being removed") {
		t.Errorf("being removed: got %v", err)
	}
}

func TestCompileThreads(t *testing.T) {
	for _, c := range [][3]int{{1, 1, 1}, {16, 1, 16}, {16, 4, 4}, {2, 8, 1}, {128, 1, 32}, {128, 8, 16}, {8, 0, 8}} {
		if got := CompileThreads(c[0], c[1]); got != c[2] {
			t.Errorf("%d cores, width %d: want %d, got %d", c[0], c[1], c[2], got)
		}
	}
}

// TestBrokenEntry: kernels that a certificate sealed are kept while they are
// whole, and put away once they are not; warm-ups side by side are left alone.
func TestBrokenEntry(t *testing.T) {
	c, err := open(t.TempDir(), facts(), on("/", 0xEF53))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	code := filepath.Join(c.Dir, "inductor", "k.py")
	enter := func(want string) {
		t.Helper()
		did, err := c.Enter()
		if err != nil || (did == "") != (want == "") || !strings.Contains(did, want) {
			t.Fatalf("did %q, %v, want %q", did, err, want)
		}
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(code, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leave := func(certified bool) {
		t.Helper()
		if err := c.Leave(certified); err != nil {
			t.Fatal(err)
		}
	}
	enter("") // a new entry is whole
	put("whole")
	leave(true)
	enter("")
	leave(true)
	put("wh")
	enter("inductor/k.py has 2 bytes, had 5: set aside")
	if _, err := os.Stat(code); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the broken kernel is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.Dir, factsFile)); err != nil {
		t.Error(err)
	}
	put("half") // of a warm-up that fails
	leave(false)
	enter("removed 1 files that came after")
	put("whole again")
	enter("") // a second one beside it: nothing is looked at
	put("whole aga")
	leave(true)
	put("whole again")
	leave(true) // the last one seals
	enter("")
	leave(false)
}

// TestWarmUpsOfTwoRuns: what a run makes while it warms up is neither put away
// nor sealed by another run, and the last one seals what all of them made.
func TestWarmUpsOfTwoRuns(t *testing.T) {
	root := t.TempDir()
	one, other := opened(t, root), opened(t, root)
	kernel := func(name string) string { return filepath.Join(one.Dir, "inductor", name) }
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(kernel(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	enter := func(c *Cache, want string) {
		t.Helper()
		if did, err := c.Enter(); err != nil || (did == "") != (want == "") || !strings.Contains(did, want) {
			t.Fatalf("did %q, %v, want %q", did, err, want)
		}
	}
	leave := func(c *Cache, certified bool) {
		t.Helper()
		if err := c.Leave(certified); err != nil {
			t.Fatal(err)
		}
	}
	enter(one, "")
	put("a.py", "ha") // half of it
	enter(other, "")
	if _, err := os.Stat(kernel("a.py")); err != nil {
		t.Errorf("put away while the other run writes it: %v", err)
	}
	leave(other, true) // seals nothing, as the first is inside
	put("a.py", "half and the rest")
	leave(one, true)
	enter(other, "") // sealed whole
	put("b.py", "of a warm-up that fails")
	enter(one, "")
	leave(one, true)
	leave(other, false)
	enter(one, "removed 1 files that came after")
	leave(one, false)
}

// opened is an entry that is closed with the test.
func opened(t *testing.T, root string) *Cache {
	t.Helper()
	c, err := open(root, facts(), on("/", 0xEF53))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
