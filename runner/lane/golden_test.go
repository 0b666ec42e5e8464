package lane

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

var update = flag.Bool("update", false, "write proto/golden anew")

const goldenDir = "../../proto/golden"

// goldenLines gives each type's frames, in the order of testOrders and
// testReplies; the sequence numbers are 1, 2, ... over each of the two lists.
func goldenLines(t *testing.T) map[string][]string {
	t.Helper()
	lines := map[string][]string{}
	for i, o := range testOrders() {
		b, err := EncodeOrder(uint64(i+1), o)
		if err != nil {
			t.Fatal(err)
		}
		lines[runner.OrderType(o)] = append(lines[runner.OrderType(o)], hex.EncodeToString(b))
	}
	for i, r := range testReplies() {
		b, err := EncodeReply(uint64(i+1), r)
		if err != nil {
			t.Fatal(err)
		}
		lines[runner.ReplyType(r)] = append(lines[runner.ReplyType(r)], hex.EncodeToString(b))
	}
	return lines
}

// TestGolden: the committed frames are what Go writes, and what Go reads back;
// python/tests/test_lane.py holds Python to the same files.
func TestGolden(t *testing.T) {
	want := goldenLines(t)
	if *update {
		for typ, lines := range want {
			text := strings.Join(lines, "\n") + "\n"
			if err := os.WriteFile(filepath.Join(goldenDir, typ+".hex"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.hex"))
	if err != nil || len(files) != len(want) {
		t.Fatalf("got %d golden files, want %d: %v", len(files), len(want), err)
	}
	for typ, lines := range want {
		text, err := os.ReadFile(filepath.Join(goldenDir, typ+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Fields(string(text)); !reflect.DeepEqual(got, lines) {
			t.Errorf("%s: committed frames differ from what is encoded\ngot  %q\nwant %q", typ, got, lines)
		}
	}
}

// TestTheSchemaIsWhole: each type of lane.md has a golden frame.
func TestTheSchemaIsWhole(t *testing.T) {
	page, err := os.ReadFile("../../proto/lane.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, line := range strings.Split(string(page), "\n") {
		name, ok := strings.CutPrefix(line, "| `")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, "`")
		seen++
		if _, err := os.Stat(filepath.Join(goldenDir, name+".hex")); err != nil {
			t.Errorf("%s: no golden frame: %v", name, err)
		}
	}
	if seen != 27 {
		t.Errorf("lane.md: got %d types, want 27", seen)
	}
}

// controlBytes is what one row costs on the lane.
const controlBytes = 1024

// TestControlBytesOfARow: at most 1 KiB moves per row, with four samples in it.
func TestControlBytesOfARow(t *testing.T) {
	plan := runner.RowPlan{Row: 1 << 20, Epoch: 9, Bucket: 32768}
	for i := range uint32(4) {
		plan.Pieces = append(plan.Pieces, runner.Piece{
			Sample: runner.Sample(400000 + i), Draw: 3, Start: 8192 * i, Tokens: 8192, Anchors: 128,
		})
	}
	handle := runner.Handle{Arena: 12, Slot: 2, Version: 1 << 20, CRC: 0xffffffff, Tensors: []runner.Tensor{
		{Name: "hidden", DType: "BF16", Shape: []uint64{32768, 25600}, Offset: 64, NBytes: 1677721600},
		{Name: "tokens", DType: "I32", Shape: []uint64{32768}, Offset: 1677721664, NBytes: 131072},
		{Name: "loss_mask", DType: "U8", Shape: []uint64{32768}, Offset: 1677852736, NBytes: 32768},
		{Name: "documents", DType: "I32", Shape: []uint64{32768}, Offset: 1677885504, NBytes: 131072},
	}}
	total := 0
	for _, o := range []runner.Order{
		runner.Produce{RowPlan: plan, Slot: runner.Slot{Arena: 12, Index: 2}, Version: 1 << 20},
		runner.Pull{RowPlan: plan, Handle: handle},
		runner.Train{At: testAt, Micro: 7, Row: plan.Row, Last: true},
	} {
		b, err := EncodeOrder(1<<32, o)
		if err != nil {
			t.Fatal(err)
		}
		total += len(b)
	}
	for _, r := range []runner.Reply{
		runner.Produced{Row: plan.Row, Handle: handle, BusyUS: 1 << 24},
		runner.Pulled{Row: plan.Row, BusyUS: 1 << 24},
		runner.Trained{Step: testAt.Step, Micro: 7, Row: plan.Row, BusyUS: 1 << 24},
	} {
		b, err := EncodeReply(1<<32, r)
		if err != nil {
			t.Fatal(err)
		}
		total += len(b)
	}
	t.Logf("control bytes of a row with four pieces: %d", total)
	if total > controlBytes {
		t.Errorf("control bytes of a row: want at most %d, got %d", controlBytes, total)
	}
}
