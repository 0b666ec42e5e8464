package image

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// safetensors lays out a small image: one F32 tensor of n values.
func safetensors(t *testing.T, n int, change func(meta map[string]string, tensors map[string]any)) []byte {
	t.Helper()
	zeros := hex.EncodeToString(make([]byte, 32))
	meta := map[string]string{"format": Format, "step": "00000000000000000007", "optimizer_step": "7", "chain": zeros, "parameters": zeros}
	tensors := map[string]any{"masters.a": map[string]any{"dtype": "F32", "shape": []int{n}, "data_offsets": []int{0, 4 * n}}}
	if change != nil {
		change(meta, tensors)
	}
	tensors["__metadata__"] = meta
	text, err := json.Marshal(tensors)
	if err != nil {
		t.Fatal(err)
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(out, text...), bytes.Repeat([]byte{1, 2, 3, 4}, n)...)
}

// imageOf gives an image in memory that holds b, and the facts of it.
func imageOf(t *testing.T, step runner.Step, b []byte) (*Image, Facts) {
	t.Helper()
	i, err := Make(step, uint64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() })
	if _, err := i.File().WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	d, err := Digest(i.ReadOnlyFile(), i.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	zeros := hex.EncodeToString(make([]byte, 32))
	return i, Facts{Step: step, Lineage: 1, Chain: zeros, Parameters: zeros, Image: hex.EncodeToString(d[:]), Bytes: i.Bytes(), Written: "now"}
}

func TestReadHeader(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(meta map[string]string, tensors map[string]any)
		cut    int // bytes taken off the end
		want   string
	}{
		{name: "whole"},
		{"another format", func(m map[string]string, _ map[string]any) { m["format"] = "x" }, 0, "__metadata__.format"},
		{"no step", func(m map[string]string, _ map[string]any) { delete(m, "step") }, 0, "__metadata__.step"},
		{"short chain", func(m map[string]string, _ map[string]any) { m["chain"] = "ab" }, 0, "__metadata__.chain"},
		{"unknown dtype", func(_ map[string]string, ts map[string]any) {
			ts["masters.a"] = map[string]any{"dtype": "Q4", "shape": []int{4}, "data_offsets": []int{0, 16}}
		}, 0, "dtype"},
		{"wrong size", func(_ map[string]string, ts map[string]any) {
			ts["masters.a"] = map[string]any{"dtype": "F32", "shape": []int{5}, "data_offsets": []int{0, 16}}
		}, 0, "data_offsets"},
		{"shape that wraps", func(_ map[string]string, ts map[string]any) {
			ts["masters.a"] = map[string]any{"dtype": "F32", "shape": []uint64{1 << 62, 4}, "data_offsets": []int{0, 16}}
		}, 0, "too large"},
		{"overlap", func(_ map[string]string, ts map[string]any) {
			ts["masters.b"] = map[string]any{"dtype": "F32", "shape": []int{4}, "data_offsets": []int{0, 16}}
		}, 0, "want a tensor at 16, got one at 0"},
		{"gap", func(_ map[string]string, ts map[string]any) {
			ts["masters.a"] = map[string]any{"dtype": "F32", "shape": []int{3}, "data_offsets": []int{4, 16}}
		}, 0, "want a tensor at 0, got one at 4"},
		{"cut short", nil, 1, "data: want 16 bytes, got 15"},
		{"only half of the header", nil, 150, "header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := safetensors(t, 4, c.change)
			b = b[:len(b)-c.cut]
			i, _ := imageOf(t, 7, b)
			h, err := ReadHeader(i.ReadOnlyFile(), i.Bytes())
			if c.want == "" {
				if err != nil || h.Step != 7 || h.Tensors != 1 {
					t.Fatalf("got %+v, %v", h, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || runner.KindOf(err) != runner.Invalid {
				t.Fatalf("want an invalid image that names %q, got %v", c.want, err)
			}
		})
	}
}

func FuzzReadHeader(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<63))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHeader(bytes.NewReader(b), uint64(len(b)))
		if err == nil && h.Bytes != uint64(len(b)) {
			t.Fatalf("accepted %d bytes as %d", len(b), h.Bytes)
		}
	})
}

func TestPublishAndOpen(t *testing.T) {
	dir := t.TempDir()
	b := safetensors(t, 1000, nil)
	i, facts := imageOf(t, 7, b)
	name, err := Publish(dir, i.ReadOnlyFile(), facts, Disk{})
	if err != nil || name != "step-7" {
		t.Fatalf("got %q, %v", name, err)
	}
	file, got, err := Open(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if d, err := Digest(file, got.Bytes); err != nil || hex.EncodeToString(d[:]) != facts.Image {
		t.Fatalf("digest %x, %v; want %s", d, err, facts.Image)
	}
	if again, err := Publish(dir, i.ReadOnlyFile(), facts, fullDisk{}); err != nil || again != name {
		t.Fatalf("the same one again: got %q, %v; want nothing written", again, err)
	}
}

// TestPublishMendsADamagedOne: a checkpoint whose facts name the image and
// whose file is not it any more is written anew.
func TestPublishMendsADamagedOne(t *testing.T) {
	dir := t.TempDir()
	i, facts := imageOf(t, 7, safetensors(t, 1000, nil))
	name, err := Publish(dir, i.ReadOnlyFile(), facts, Disk{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, name, ImageFile), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := Publish(dir, i.ReadOnlyFile(), facts, Disk{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(filepath.Join(dir, name)); err != nil {
		t.Errorf("published again: %v", err)
	}
}

// fullDisk has room for so many bytes, of which an image takes its part first.
type fullDisk struct{ room, image int64 }

func (d fullDisk) Copy(to, from *os.File, size uint64) error {
	if int64(size) <= d.room {
		return Disk{}.Copy(to, from, size)
	}
	return errors.Join(Disk{}.Copy(to, from, uint64(d.room)), unix.ENOSPC)
}

func (d fullDisk) Write(to *os.File, b []byte) error {
	n := min(int64(len(b)), max(0, d.room-d.image))
	if _, err := to.Write(b[:n]); err != nil || n == int64(len(b)) {
		return err
	}
	return unix.ENOSPC
}

func TestFullDiskLeavesTheOneBefore(t *testing.T) {
	dir := t.TempDir()
	first, facts := imageOf(t, 7, safetensors(t, 1000, nil))
	if _, err := Publish(dir, first.ReadOnlyFile(), facts, Disk{}); err != nil {
		t.Fatal(err)
	}
	b := safetensors(t, 1000, func(m map[string]string, _ map[string]any) { m["step"] = "8" })
	second, next := imageOf(t, 8, b)
	next.Step = 8
	for _, room := range []int64{0, 1, 999, int64(len(b)) - 1, int64(len(b)), int64(len(b)) + 100} {
		_, err := Publish(dir, second.ReadOnlyFile(), next, fullDisk{room, int64(len(b))})
		if runner.KindOf(err) != runner.Exhausted || runner.HintOf(err) == "" {
			t.Fatalf("room for %d bytes: want exhausted with a hint, got %v", room, err)
		}
		all, err := List(dir)
		if err != nil || len(all) != 1 || all[0].Name != "step-7" || all[0].Err != nil {
			t.Fatalf("room for %d bytes: left %+v, %v", room, all, err)
		}
		if _, err := Verify(all[0].Path); err != nil {
			t.Fatalf("room for %d bytes: the one before: %v", room, err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".partial-*")); len(left) > 0 {
			t.Fatalf("room for %d bytes: left behind %v", room, left)
		}
	}
}

func TestFlippedBitIsFound(t *testing.T) {
	dir := t.TempDir()
	i, facts := imageOf(t, 7, safetensors(t, 50, nil))
	name, err := Publish(dir, i.ReadOnlyFile(), facts, Disk{})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{ImageFile, FactsFile} {
		path := filepath.Join(dir, name, file)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(whole); at += 7 {
			bad := bytes.Clone(whole)
			bad[at] ^= 0x10
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Verify(filepath.Join(dir, name))
			// `written` and lineage are for people; nothing is decided by them.
			if err == nil && !(file == FactsFile && decidesNothing(whole, bad)) {
				t.Fatalf("byte %d of %s flipped: not noticed", at, file)
			}
			if err != nil && !strings.Contains(err.Error(), name) {
				t.Fatalf("byte %d of %s flipped: %v names no file", at, file, err)
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func decidesNothing(a, b []byte) bool {
	var x, y Facts
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	x.Written, y.Written, x.Lineage, y.Lineage = "", "", 0, 0
	return fmt.Sprintf("%+v", x) == fmt.Sprintf("%+v", y)
}

func TestHalfWrittenIsNotListedAndSwept(t *testing.T) {
	dir := t.TempDir()
	i, facts := imageOf(t, 7, safetensors(t, 50, nil))
	if _, err := Publish(dir, i.ReadOnlyFile(), facts, Disk{}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, ".partial-9"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "step-8"), 0o700); err != nil { // no facts: broken, and said so
		t.Fatal(err)
	}
	all, err := List(dir)
	if err != nil || len(all) != 2 {
		t.Fatalf("got %+v, %v", all, err)
	}
	for _, c := range all {
		if (c.Name == "step-8") != (c.Err != nil) {
			t.Errorf("%s: error %v", c.Name, c.Err)
		}
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".partial-*")); len(left) > 0 {
		t.Fatalf("not swept: %v", left)
	}
	if err := Remove(dir, "step-7"); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir, "step-7"); runner.KindOf(err) != runner.NotFound {
		t.Fatalf("removing again: %v", err)
	}
	if err := Remove(dir, "../x"); runner.KindOf(err) != runner.Invalid {
		t.Fatalf("removing another directory: %v", err)
	}
}

func TestKeep(t *testing.T) {
	all := []Checkpoint{{Name: "step-1"}, {Name: "step-2"}, {Name: "step-3"}, {Name: "step-4"}}
	for _, c := range []struct {
		n    int
		but  []string
		want string
	}{
		{2, nil, "[step-1 step-2]"},
		{2, []string{"step-1"}, "[step-2]"}, // the best stays
		{9, nil, "[]"},
		{0, []string{"step-4"}, "[step-1 step-2 step-3]"},
	} {
		if got := fmt.Sprint(Keep(all, c.n, c.but...)); got != c.want {
			t.Errorf("keep %d but %v: got %s, want %s", c.n, c.but, got, c.want)
		}
	}
}
