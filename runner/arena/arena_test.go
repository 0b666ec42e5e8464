package arena

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

var update = flag.Bool("update", false, "write proto/golden/layouts.json anew")

const goldenLayouts = "../../proto/golden/layouts.json"

type layoutCase struct {
	Bucket    uint32   `json:"bucket"`
	Width     uint64   `json:"width"`
	DType     string   `json:"dtype"`
	Tensors   [][5]any `json:"tensors"` // as the lane's tensor array
	SlotBytes uint64   `json:"slot_bytes"`
}

func layoutCases(t *testing.T) []layoutCase {
	t.Helper()
	cases := []layoutCase{
		{Bucket: 1, Width: 1, DType: "F32"}, {Bucket: 100, Width: 7, DType: "BF16"}, {Bucket: 96, Width: 40, DType: "F32"},
		{Bucket: 512, Width: 480, DType: "F32"}, {Bucket: 8192, Width: 12800, DType: "BF16"}, {Bucket: 32768, Width: 25600, DType: "BF16"},
	}
	for i, c := range cases {
		tensors, size, err := Layout(c.Bucket, c.Width, c.DType)
		if err != nil {
			t.Fatal(err)
		}
		cases[i].SlotBytes = size
		for _, x := range tensors {
			cases[i].Tensors = append(cases[i].Tensors, [5]any{x.Name, x.DType, x.Shape, x.Offset, x.NBytes})
		}
	}
	return cases
}

// TestLayoutGolden: python/tests/test_arena.py holds Python to the same file.
func TestLayoutGolden(t *testing.T) {
	want, err := json.MarshalIndent(layoutCases(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(goldenLayouts, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(goldenLayouts)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("committed layouts differ, %v: got\n%s\nwant\n%s", err, got, want)
	}
}

// TestLayoutKeepsTheRules: order, alignment, no overlap, within the slot.
func TestLayoutKeepsTheRules(t *testing.T) {
	for bucket := uint32(1); bucket < 200; bucket += 3 {
		tensors, size, err := Layout(bucket, 5, "BF16")
		if err != nil {
			t.Fatal(err)
		}
		end := uint64(HeaderBytes)
		for _, x := range tensors {
			if x.Offset < end || x.Offset%HeaderBytes != 0 || x.Offset-end >= HeaderBytes {
				t.Fatalf("bucket %d: %s at %d after %d", bucket, x.Name, x.Offset, end)
			}
			end = x.Offset + x.NBytes
		}
		if size < end || size%pageBytes != 0 || size-end >= pageBytes {
			t.Fatalf("bucket %d: size %d after %d", bucket, size, end)
		}
	}
}

func TestLayoutRefuses(t *testing.T) {
	for name, c := range map[string]layoutCase{
		"dtype": {Bucket: 1, Width: 1, DType: "F16"}, "bucket": {Width: 1, DType: "F32"}, "width": {Bucket: 1, DType: "F32"},
		"overflow":  {Bucket: math.MaxUint32, Width: math.MaxUint64, DType: "F32"},
		"too large": {Bucket: math.MaxUint32, Width: 1 << 31, DType: "F32"},
	} {
		if _, _, err := Layout(c.Bucket, c.Width, c.DType); err == nil || runner.KindOf(err) != runner.Invalid {
			t.Errorf("%s: got %v, want kind invalid", name, err)
		}
	}
}

func TestCheckHandle(t *testing.T) {
	tensors, size, err := Layout(64, 8, "F32")
	if err != nil {
		t.Fatal(err)
	}
	h := runner.Handle{Arena: 2, Slot: 1, Version: 1, Tensors: tensors}
	if err := CheckHandle(h, 2, 2, size); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"other arena":  CheckHandle(h, 3, 2, size),
		"no such slot": CheckHandle(h, 2, 1, size),
		"beyond":       CheckHandle(h, 2, 2, size-pageBytes),
		"wraps":        CheckHandle(runner.Handle{Arena: 2, Tensors: []runner.Tensor{{Offset: math.MaxUint64 - 63, NBytes: 128}}}, 2, 2, size),
	} {
		if err == nil || runner.KindOf(err) != runner.Invalid {
			t.Errorf("%s: got %v, want kind invalid", name, err)
		}
	}
}

func newArena(t *testing.T, slots uint32, slotBytes uint64) *Arena {
	t.Helper()
	a, err := New(7, slots, slotBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func TestArenaIsSealedAndFilled(t *testing.T) {
	a := newArena(t, 3, 1<<20)
	if a.Bytes() != 3<<20 || a.Kind() != "memfd" {
		t.Errorf("got %d bytes of kind %s", a.Bytes(), a.Kind())
	}
	fd := int(a.File().Fd())
	for name, size := range map[string]int64{"shrink": 0, "grow": 4 << 20} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: got %v, want EPERM", name, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("seal more: got %v, want EPERM", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != 3<<20 || st.Blocks*512 < 3<<20 {
		t.Errorf("got %d bytes of which %d are allocated, %v, want all of %d", st.Size, st.Blocks*512, err, 3<<20)
	}
	if o := a.Order(true); o.Arena != 7 || o.Slots != 3 || o.SlotBytes != 1<<20 || !o.Write || o.Kind != KindMemfd {
		t.Errorf("got order %+v", o)
	}
}

// TestMemfdIsThere: every page was asked for when it was made, not promised.
func TestMemfdIsThere(t *testing.T) {
	f, err := Memfd("test", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size != 1<<20 || st.Blocks*512 < 1<<20 {
		t.Errorf("got %d bytes of which %d are allocated, %v, want all of %d", st.Size, st.Blocks*512, err, 1<<20)
	}
}

// TestReadOnlyTwin: it sees the producer's bytes and maps for reading alone.
func TestReadOnlyTwin(t *testing.T) {
	a := newArena(t, 1, 4096)
	if _, err := a.File().WriteAt([]byte("row"), 64); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 3)
	if _, err := a.ReadOnlyFile().ReadAt(b, 64); err != nil || string(b) != "row" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := a.ReadOnlyFile().WriteAt(b, 0); err == nil {
		t.Error("written through the read-only twin")
	}
	if m, err := unix.Mmap(int(a.ReadOnlyFile().Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
		t.Errorf("mapped for writing: %v, %v", len(m), err)
	}
}

// TestArenaIsNotTheSupervisorsMemory: neither mapped nor counted afterwards,
// nor at the peak.
func TestArenaIsNotTheSupervisorsMemory(t *testing.T) {
	const size = 64 << 20
	before := statusBytes(t, "VmHWM:")
	a := newArena(t, 1, size)
	if grown := statusBytes(t, "VmHWM:") - before; grown > size/4 {
		t.Errorf("peak memory grew by %d bytes for an arena of %d", grown, size)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(maps), "dflash arena") {
		t.Error("the arena is still mapped")
	}
	a.Close()
}

func statusBytes(t *testing.T, key string) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), key)
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// TestMemoryThatIsNotThere is refused before it is asked of the kernel, which
// would kill processes instead. The check is a function here, and the size
// small: no test may try this with memory.
func TestMemoryThatIsNotThere(t *testing.T) {
	asked := uint64(0)
	f, err := makeMemfd("refused", 4096, func(need uint64) error {
		asked = need
		return judge(need, []Limit{{"here", 4095}})
	})
	if err == nil || runner.KindOf(err) != runner.Exhausted || runner.HintOf(err) == "" || asked != 4096 {
		t.Errorf("got %v, %v after a check of %d bytes, want kind exhausted with a hint", f, err, asked)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		id        runner.Arena
		slots     uint32
		slotBytes uint64
	}{
		"no number": {0, 1, 4096}, "no slots": {1, 0, 4096}, "below a header": {1, 1, 32}, "not aligned": {1, 1, 100},
		"overflow": {1, math.MaxUint32, 1 << 62},
	} {
		if a, err := New(c.id, c.slots, c.slotBytes); err == nil || runner.KindOf(err) != runner.Invalid {
			t.Errorf("%s: got %v, %v, want kind invalid", name, a, err)
		}
	}
}

// TestDescriptorsDoNotLeak: neither into children, nor here after Close or an error.
func TestDescriptorsDoNotLeak(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	a, err := New(1, 1, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{a.File(), a.ReadOnlyFile()} {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: not close-on-exec: %d, %v", f.Name(), flags, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if after := count(); after != before {
		t.Errorf("got %d descriptors, want %d", after, before)
	}
}
