package doctor

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// fine is a machine with nothing to say about.
func fine() Readings {
	return Readings{
		OS: "linux", Arch: "amd64", Kernel: "6.1", Python: PythonReading{
			Python: "3.11.7", Path: "/c/bin/python", Dir: "/c", Packages: map[string]string{"torch": "2.11.0+cu130"}, Wanted: map[string]string{"torch": "2.11.0"},
		},
		Memory: MemoryReading{Total: 16 << 30, Available: 12 << 30}, Shm: Disk{Path: "/dev/shm", FreeBytes: 1 << 30, TotalBytes: 1 << 30},
		Memlock: Limit{Soft: 8 << 20, Hard: 8 << 20}, Files: Limit{Soft: 1024, Hard: math.MaxUint64},
		RunDir: Disk{Path: "/r", FreeBytes: 50 << 30}, CacheDir: Disk{Path: "/c", FreeBytes: 50 << 30},
		Runtime: RuntimeReading{Path: "/run/user/1", Mode: 0o700, Own: true},
		Clock:   ClockReading{Now: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC), Known: true, Synchronised: true},
	}
}

func twoGPUs(r *Readings) {
	r.GPUs = []GPU{{0, "H200", "GPU-a", 141 << 30, 0, "580.1", false, nil}, {1, "H200", "GPU-b", 141 << 30, 0, "580.1", false, nil}}
	r.Memlock = Limit{Soft: math.MaxUint64, Hard: math.MaxUint64}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name   string // of the check that is expected to speak
		edit   func(*Readings, *Needs)
		status Status
		detail string
	}{
		{"", func(*Readings, *Needs) {}, OK, ""},
		{"", func(r *Readings, n *Needs) { twoGPUs(r); n.GPU = true }, OK, ""},
		{"", func(_ *Readings, n *Needs) { n.MemoryBytes = 11 << 30 }, OK, ""},
		{"system", func(r *Readings, _ *Needs) { r.OS = "darwin" }, Fail, "darwin"},
		{"system", func(r *Readings, _ *Needs) { r.Arch = "386" }, Fail, "386"},
		{"system", func(r *Readings, _ *Needs) { r.MemfdErr = errors.New("denied") }, Fail, "denied"},
		{"python", func(r *Readings, _ *Needs) { r.Python.Err, r.Python.Hint = errors.New("too old"), "newer" }, Fail, "too old"},
		{"python", func(r *Readings, _ *Needs) { r.Python.Problem = "absent" }, Warn, "no environment yet"},
		{"python", func(r *Readings, _ *Needs) { r.Python.Problem = "damaged: x is missing" }, Warn, "damaged: x"},
		{"packages", func(r *Readings, _ *Needs) { r.Python.Packages = nil }, Warn, "none installed"},
		{"packages", func(r *Readings, _ *Needs) { r.Python.Packages["torch"] = "2.12.0" }, Warn, "torch 2.12.0"},
		{"", func(r *Readings, _ *Needs) { r.Python.Packages["torch"] = "2.11.9" }, OK, ""},
		{"devices", func(_ *Readings, n *Needs) { n.GPU = true }, Fail, "no GPU"},
		{"devices", func(r *Readings, _ *Needs) { r.GPUErr = errors.New("no answer in time") }, Warn, "no answer"},
		{"devices", func(r *Readings, n *Needs) { r.GPUErr, n.GPU = errors.New("no answer in time"), true }, Fail, "no answer"},
		{"devices", func(r *Readings, _ *Needs) { twoGPUs(r); r.GPUs[1].Driver = "535.2" }, Warn, "535.2"},
		{"devices", func(r *Readings, n *Needs) { twoGPUs(r); r.GPUs[1].Driver, n.GPU = "535.2", true }, Fail, "535.2"},
		{"devices", func(r *Readings, n *Needs) { twoGPUs(r); r.GPUs[0].MIG, n.GPU = true, true }, Warn, "H200"},
		{"placement", func(r *Readings, n *Needs) {
			n.PlacementErr = runner.Errorf(runner.Exhausted, "GPU 0 is in use").WithHint("name another")
		}, Fail, "in use"},
		{"", func(_ *Readings, n *Needs) { n.Placement = "all on the CPU" }, OK, ""},
		{"", func(_ *Readings, n *Needs) { n.Plugin = "mine" }, OK, ""},
		{"plugin", func(_ *Readings, n *Needs) {
			n.Plugin, n.PluginErr = "mine", runner.Errorf(runner.Invalid, "want sha256 1, got 2").WithHint("pin it")
		}, Warn, "want sha256 1, got 2; the built-in would decide alone"},
		{"plugin", func(_ *Readings, n *Needs) {
			n.Plugin, n.PluginRequired, n.PluginErr = "mine", true, runner.Errorf(runner.Invalid, "want sha256 1, got 2").WithHint("pin it")
		}, Fail, "want sha256 1, got 2"},
		{"peer access", func(r *Readings, _ *Needs) { twoGPUs(r); r.NoPeer = [][2]int{{0, 1}} }, Warn, "[[0 1]]"},
		{"arenas", func(_ *Readings, n *Needs) { n.ArenaKind, n.ArenaReason = "memfd", "GPU-b has no peer access" }, Warn, "memfd, as GPU-b has no peer access"},
		{"arenas", func(_ *Readings, n *Needs) {
			n.ArenaErr = runner.Errorf(runner.Unavailable, "want kind cuda_vmm, but").WithHint("auto")
		}, Fail, "want kind cuda_vmm"},
		{"", func(_ *Readings, n *Needs) { n.ArenaKind = "cuda_vmm" }, OK, ""},
		{"memory", func(r *Readings, _ *Needs) { r.Memory.Err = errors.New("no /proc") }, Warn, "no /proc"},
		{"memory", func(_ *Readings, n *Needs) { n.MemoryBytes = 13 << 30 }, Fail, "the run needs 13.0 GiB"},
		{"memory", func(r *Readings, _ *Needs) { r.Memory.CgroupLimit, r.Memory.CgroupInUse = 4<<30, 1<<30 }, Warn, "3.0 GiB left of the cgroup's 4.0 GiB"},
		{"memory", func(r *Readings, _ *Needs) { r.Memory.CgroupLimit, r.Memory.CgroupInUse = 4<<30, 5<<30 }, Fail, "0 B left"},
		{"memory", func(r *Readings, _ *Needs) { r.Memory.Available = 1 << 20 }, Fail, "1.0 MiB of 16.0 GiB"},
		{"/dev/shm", func(r *Readings, _ *Needs) { r.Shm.FreeBytes = 1 << 20 }, Warn, "1.0 MiB"},
		{"/dev/shm", func(r *Readings, _ *Needs) { r.Shm.Err = errors.New("not there") }, Warn, "not there"},
		{"memlock", func(r *Readings, _ *Needs) { twoGPUs(r); r.Memlock.Soft = 8 << 20 }, Warn, "8.0 MiB (at most unlimited)"},
		{"memlock", func(r *Readings, _ *Needs) { r.Memlock.Err = errors.New("no") }, Warn, "no"},
		{"open files", func(r *Readings, _ *Needs) { r.Files.Soft = 300 }, Warn, "300"},
		{"open files", func(r *Readings, _ *Needs) { r.Files.Soft = 64 }, Fail, "64"},
		{"run directory", func(r *Readings, _ *Needs) { r.RunDir.FreeBytes = 1 << 20 }, Fail, "1.0 MiB free"},
		{"run directory", func(r *Readings, _ *Needs) { r.RunDir.FreeBytes = 2 << 30 }, Warn, "2.0 GiB free"},
		{"run directory", func(r *Readings, _ *Needs) { r.RunDir.WriteErr = errors.New("read-only") }, Fail, "read-only"},
		{"run directory", func(r *Readings, _ *Needs) { r.RunDir.Err = errors.New("gone") }, Fail, "gone"},
		{"cache directory", func(r *Readings, _ *Needs) { r.CacheDir.FileSystem = "NFS" }, Warn, "on NFS"},
		{"runtime directory", func(r *Readings, _ *Needs) { r.Runtime.Own = false }, Fail, "another user"},
		{"runtime directory", func(r *Readings, _ *Needs) { r.Runtime.Mode = 0o755 }, Fail, "0755"},
		{"runtime directory", func(r *Readings, _ *Needs) { r.Runtime.Path = "/" + strings.Repeat("x", 90) }, Fail, "longer than"},
		{"runtime directory", func(r *Readings, _ *Needs) { r.Runtime.Err = errors.New("gone") }, Fail, "gone"},
		{"runtime directory", func(r *Readings, _ *Needs) { r.Runtime.WriteErr = errors.New("full") }, Fail, "full"},
		{"clock", func(r *Readings, _ *Needs) { r.Clock.Now = time.Unix(0, 0) }, Fail, "1970"},
		{"clock", func(r *Readings, _ *Needs) { r.Clock.Synchronised = false }, Warn, "not synchronised"},
		{"", func(r *Readings, _ *Needs) { r.Clock.Synchronised, r.Clock.Known = false, false }, OK, ""},
	} {
		r, n := fine(), Needs{}
		c.edit(&r, &n)
		checks := Judge(r, n)
		if Worst(checks) != c.status {
			t.Errorf("%s %q: worst is %s, want %s: %+v", c.name, c.detail, Worst(checks), c.status, checks)
		}
		for _, got := range checks {
			switch {
			case got.Name != c.name && got.Status != OK, got.Status != OK && got.Hint == "" && got.Name != "memory":
				t.Errorf("%s %q: %+v", c.name, c.detail, got)
			case got.Name == c.name && (got.Status != c.status || !strings.Contains(got.Detail, c.detail)):
				t.Errorf("got %+v, want %s with %q", got, c.status, c.detail)
			}
		}
	}
}

// An environment that is still to be made takes room in the cache.
func TestJudgeCacheBeforeEnvironment(t *testing.T) {
	r := fine()
	r.Python.Problem, r.CacheDir.FreeBytes = "absent", 4<<30
	if c := Judge(r, Needs{})[11]; c.Name != "cache directory" || c.Status != Fail || !strings.Contains(c.Hint, "8.0 GiB") {
		t.Errorf("got %+v", c)
	}
}

func put(t *testing.T, text string, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadMemory(t *testing.T) {
	dir := t.TempDir()
	info := put(t, "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\nOdd\n", dir, "meminfo")
	self := put(t, "0::/a/b\n", dir, "self")
	put(t, "max\n", dir, "a/b/memory.max")
	put(t, "4194304\n", dir, "a/memory.max") // a parent's limit counts
	put(t, "1048576\n", dir, "a/memory.current")
	m := readMemory(info, dir, self)
	if want := (MemoryReading{Total: 16 << 20, Available: 8 << 20, CgroupLimit: 4 << 20, CgroupInUse: 1 << 20}); m != want {
		t.Errorf("got %+v, want %+v", m, want)
	}
	old := put(t, "5:cpu:/x\n4:memory:/m\n", dir, "self1")
	put(t, "2097152\n", dir, "memory/m/memory.limit_in_bytes")
	put(t, "0\n", dir, "memory/m/memory.usage_in_bytes")
	if m := readMemory(info, dir, old); m.CgroupLimit != 2<<20 {
		t.Errorf("first version: got %+v", m)
	}
	if m := readMemory(put(t, "nothing\n", dir, "empty"), dir, self); m.Err == nil {
		t.Errorf("nothing said: got %+v", m)
	}
}

func TestReadDisk(t *testing.T) {
	dir := t.TempDir()
	d := readDisk(filepath.Join(dir, "not", "there"))
	if d.Err != nil || d.WriteErr != nil || d.FreeBytes == 0 || d.TotalBytes < d.FreeBytes {
		t.Errorf("got %+v", d)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if d := readDisk(put(t, "", dir, "file")); d.Err == nil {
		t.Errorf("a file: got %+v", d)
	}
	if d := readDisk("/proc/self"); d.WriteErr == nil {
		t.Errorf("/proc: got %+v", d)
	}
}

const smiScript = `#!/bin/sh
case "$1" in
--query-gpu*) printf '0, H200, GPU-a, 143771, 580.65.06, Disabled, 512\n1, H200, GPU-b, [N/A], 580.65.06, Enabled, [N/A]\n' ;;
--query-compute*) printf 'GPU-a, 71\nGPU-a, 72\nGPU-z, 73\n[Insufficient Permissions], 1\nNo running processes found\n' ;;
topo) printf ' \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tOK\n GPU2\tCNS\tOK\tX\n\nLegend:\n' ;;
esac
`

func TestReadGPUs(t *testing.T) {
	dir := t.TempDir()
	gpus, none, err := readGPUs(t.Context(), put(t, smiScript, dir, "smi"))
	want := []GPU{{0, "H200", "GPU-a", 143771 << 20, 512 << 20, "580.65.06", false, []int{71, 72}}, {1, "H200", "GPU-b", 0, 0, "580.65.06", true, nil}}
	if err != nil || !reflect.DeepEqual(gpus, want) || !slices.Equal(none, [][2]int{{0, 2}}) {
		t.Errorf("got %+v, %v, %v", gpus, none, err)
	}
	if why := gpuText(gpus); !strings.Contains(why, "0: H200, 140.4 GiB, driver 580.65.06, where processes [71 72] use it; 1: H200") {
		t.Errorf("told as %s", why)
	}
	if f := gpus[0].Found(); f.UUID != "GPU-a" || f.Bytes != 143771<<20 || f.UsedBytes != 512<<20 || len(f.Processes) != 2 || f.MIG {
		t.Errorf("for placement: got %+v", f)
	}
	if gpus, _, err := readGPUs(t.Context(), filepath.Join(dir, "nothing")); gpus != nil || err != nil {
		t.Errorf("not there: got %v, %v", gpus, err)
	}
	for name, script := range map[string]string{"fails": "#!/bin/sh\necho Driver/library version mismatch\nexit 18\n", "odd": "#!/bin/sh\necho hello\n"} {
		if _, _, err := readGPUs(t.Context(), put(t, script, dir, name)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// What is read of the machine that the tests run on makes sense.
func TestRead(t *testing.T) {
	runtime := t.TempDir()
	if err := os.Chmod(runtime, 0o700); err != nil {
		t.Fatal(err)
	}
	r := Read(t.Context(), Options{Python: pyenv.Worker(t.TempDir(), ""), RunDir: t.TempDir(), CacheDir: t.TempDir(), RuntimeDir: runtime})
	if r.Python.Problem != "absent" || r.Python.Err != nil || r.Python.Wanted["torch"] == "" || r.Kernel == "unknown" || r.MemfdErr != nil {
		t.Errorf("got %+v", r)
	}
	if r.Memory.Err != nil || r.Memory.Available > r.Memory.Total || r.Files.Soft == 0 || r.Files.Err != nil || !r.Runtime.Own || r.Runtime.Mode != 0o700 || r.Clock.Now.IsZero() {
		t.Errorf("got %+v", r)
	}
	for _, c := range Judge(r, Needs{}) {
		t.Logf("%-18s %-4s %s", c.Name, c.Status, c.Detail)
	}
}

// Links names by UUID what nvidia-smi names by index.
func TestLinks(t *testing.T) {
	r := fine()
	twoGPUs(&r)
	if l := r.Links(); l.MIG != nil || l.NoPeer != nil {
		t.Errorf("got %+v, want nothing in the way", l)
	}
	r.GPUs[1].MIG, r.NoPeer = true, [][2]int{{0, 1}}
	if l := r.Links(); len(l.MIG) != 1 || l.MIG[0] != "GPU-b" || len(l.NoPeer) != 1 || l.NoPeer[0] != [2]string{"GPU-a", "GPU-b"} {
		t.Errorf("got %+v", l)
	}
}
