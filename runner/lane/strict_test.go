package lane

import (
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/dflash-runner/dflash-runner/runner"
)

// killers end the process, or take gigabytes, in the library when it sees them
// unscanned.
var killers = []string{
	"ddffffffff",               // array of 2^32-1, into an interface
	"dfffffffff",               // map of 2^32-1
	"c6ffffffff",               // 4 GiB of bytes
	"dbffffffff",               // 4 GiB of string
	"81a57368617065ddffffffff", // {"shape": array of 2^32-1}: kills typed structs too
	"dd00100000c0",             // a million nils announced
	"c1",                       // never used
	"d40000",                   // extension
	"c7ff00",                   // extension, long
	"d6ff00000000",             // timestamp
	"8100a0",                   // a key that is no string
	"81a0c0",                   // nil
	"81a0ca00000000",           // float32
	"81a17605ff",               // bytes after the end
	"",                         // nothing
	"de",                       // cut in a length
	"81",                       // cut in a map
	"92dc0002a0dc0002a0",       // two arrays that share the same last bytes
	strings.Repeat("91", 9) + "90",
	strings.Repeat("91", 60000),
}

func TestScanRefusesKillers(t *testing.T) {
	for _, k := range killers {
		b, err := hex.DecodeString(k)
		if err != nil {
			t.Fatal(err)
		}
		if err := Scan(b); runner.KindOf(err) != runner.Invalid {
			t.Errorf("%.40s: got %v, want kind invalid", k, err)
		}
		if _, _, err := DecodeReply(b); runner.KindOf(err) != runner.Invalid {
			t.Errorf("%.40s: reply: got %v, want kind invalid", k, err)
		}
	}
	if err := Scan(make([]byte, MaxFrame+1)); err == nil {
		t.Error("a frame of 65537 bytes was accepted")
	}
}

// TestScanAllocatesNothing: a flood of frames costs no garbage before it is judged.
func TestScanAllocatesNothing(t *testing.T) {
	b, err := EncodeReply(1, testReplies()[1])
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if Scan(b) != nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestScanDepth: eight containers are allowed, nine are not.
func TestScanDepth(t *testing.T) {
	for depth, ok := range map[int]bool{1: true, 8: true, 9: false} {
		b, err := hex.DecodeString(strings.Repeat("91", depth-1) + "90")
		if err != nil {
			t.Fatal(err)
		}
		if got := Scan(b) == nil; got != ok {
			t.Errorf("depth %d: accepted is %t, want %t", depth, got, ok)
		}
	}
}

// trainedFrame encodes a trained reply with fields in the order given.
func trainedFrame(t *testing.T, fields ...any) []byte {
	t.Helper()
	var sb strings.Builder
	e := msgpack.NewEncoder(&sb)
	e.UseCompactInts(true)
	if err := e.EncodeMapLen(len(fields) / 2); err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		if err := e.Encode(f); err != nil {
			t.Fatal(err)
		}
	}
	return []byte(sb.String())
}

// TestDecodeRefusesWhatTheLibraryLetsThrough: each of these decodes without an
// error in the library alone.
func TestDecodeRefusesWhatTheLibraryLetsThrough(t *testing.T) {
	good := []any{"type", "trained", "v", 1, "seq", 5, "step", 9, "micro", 1, "row", 7, "busy_us", 3}
	with := func(at int, v any) []any {
		c := append([]any(nil), good...)
		c[at] = v
		return c
	}
	if _, _, err := DecodeReply(trainedFrame(t, good...)); err != nil {
		t.Fatalf("the frame that all others differ from: %v", err)
	}
	for name, fields := range map[string][]any{
		"negative":        with(9, -3),
		"overflow":        with(9, uint64(1)<<40),
		"float for int":   with(9, 1.0),
		"string for int":  with(9, "1"),
		"wrong version":   with(3, 2),
		"seq 0":           with(5, 0),
		"unknown type":    with(1, "strained"),
		"type of order":   with(1, "train"),
		"missing key":     good[:12],
		"unknown key":     append(append([]any(nil), good...), "more", 1),
		"double key":      append(append([]any(nil), good...), "busy_us", 3),
		"other order":     {"type", "trained", "seq", 5, "v", 1, "step", 9, "micro", 1, "row", 7, "busy_us", 3},
		"type not first":  {"v", 1, "type", "trained", "seq", 5, "step", 9, "micro", 1, "row", 7, "busy_us", 3},
		"type is integer": with(1, 4),
	} {
		if _, r, err := DecodeReply(trainedFrame(t, fields...)); runner.KindOf(err) != runner.Invalid || err == nil {
			t.Errorf("%s: got %+v, %v, want kind invalid", name, r, err)
		}
	}
	padded := trainedFrame(t, good...)
	padded[len(padded)-1] = 0xcc // busy_us 3 in two bytes
	if _, _, err := DecodeReply(append(padded, 3)); err == nil {
		t.Error("padded integer: accepted")
	}
}

// TestRangesAreRefused: values that no state of the receiver makes right.
func TestRangesAreRefused(t *testing.T) {
	handle := func(f func(*runner.Handle)) runner.Reply {
		h := testHandle()
		f(&h)
		return runner.Produced{Row: 1, Handle: h}
	}
	for name, r := range map[string]runner.Reply{
		"arena 0":          handle(func(h *runner.Handle) { h.Arena = 0 }),
		"version 0":        handle(func(h *runner.Handle) { h.Version = 0 }),
		"no tensors":       handle(func(h *runner.Handle) { h.Tensors = nil }),
		"17 tensors":       handle(func(h *runner.Handle) { h.Tensors = make([]runner.Tensor, 17) }),
		"in the header":    handle(func(h *runner.Handle) { h.Tensors[0].Offset = 0 }),
		"not aligned":      handle(func(h *runner.Handle) { h.Tensors[3].Offset += 32 }),
		"overlap":          handle(func(h *runner.Handle) { h.Tensors[1].Offset = 64 }),
		"dtype":            handle(func(h *runner.Handle) { h.Tensors[0].DType = "F64" }),
		"name":             handle(func(h *runner.Handle) { h.Tensors[0].Name = "" }),
		"name not UTF-8":   handle(func(h *runner.Handle) { h.Tensors[0].Name = "\xff" }),
		"nbytes":           handle(func(h *runner.Handle) { h.Tensors[0].NBytes++ }),
		"shape overflows":  handle(func(h *runner.Handle) { h.Tensors[0].Shape = []uint64{1 << 62, 1 << 62} }),
		"offset overflows": handle(func(h *runner.Handle) { h.Tensors[3].Offset = math.MaxUint64 - 63 }),
		"dimensions":       handle(func(h *runner.Handle) { h.Tensors[0].Shape = []uint64{1, 1, 1, 1, 1, 1, 1, 1, 512 * 480} }),
		"row 0":            runner.Pulled{},
		"created 0":        runner.Created{},
		"finite NaN":       runner.Voted{Finite: true, Norm: math.Float32bits(float32(math.Inf(1)))},
		"finite loss":      runner.Voted{Finite: true, Rows: []runner.RowLoss{{Row: 1, Numerator: math.NaN()}}},
		"image unwritten":  runner.Saved{Image: runner.Digest{1}},
		"what":             runner.Evaluated{What: "guess"},
		"kind":             runner.Failed{Kind: 99},
		"message":          runner.Failed{Message: strings.Repeat("x", 2049)},
		"hint":             runner.Failed{Hint: strings.Repeat("x", 1025)},
		"traceback":        runner.Failed{Traceback: make([]string, 41)},
		"traceback line":   runner.Failed{Traceback: []string{strings.Repeat("x", 301)}},
	} {
		// What a hostile worker would send is encoded past the check.
		b, err := encode(replyFrame(head{runner.ReplyType(r), 1, 1}, r))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := DecodeReply(b); err == nil || runner.KindOf(err) != runner.Invalid {
			t.Errorf("%s: decode: got %v, want kind invalid", name, err)
		}
		if _, err := EncodeReply(1, r); err == nil || runner.KindOf(err) != runner.Internal {
			t.Errorf("%s: encode: got %v, want kind internal", name, err)
		}
	}
}

func TestOrdersOutOfRangeAreRefused(t *testing.T) {
	pieces := func(p ...runner.Piece) runner.Order {
		return runner.Produce{RowPlan: runner.RowPlan{Row: 1, Bucket: 10, Pieces: p}, Slot: runner.Slot{Arena: 1}, Version: 1}
	}
	for name, o := range map[string]runner.Order{
		"arena 0":       runner.MapArena{Kind: "memfd", Slots: 1, SlotBytes: 64},
		"arena kind":    runner.MapArena{Arena: 1, Kind: "file", Slots: 1, SlotBytes: 64},
		"no slots":      runner.MapArena{Arena: 1, Kind: "memfd", SlotBytes: 64},
		"slot bytes":    runner.MapArena{Arena: 1, Kind: "memfd", Slots: 1, SlotBytes: 63},
		"create memfd":  runner.CreateArena{Arena: 1, Kind: "memfd", Slots: 1, SlotBytes: 64},
		"create 0":      runner.CreateArena{Kind: "cuda_vmm", Slots: 1, SlotBytes: 64},
		"create slots":  runner.CreateArena{Arena: 1, Kind: "cuda_vmm", SlotBytes: 64},
		"create bytes":  runner.CreateArena{Arena: 1, Kind: "cuda_vmm", Slots: 1, SlotBytes: 63},
		"no pieces":     pieces(),
		"empty piece":   pieces(runner.Piece{}),
		"overlap":       pieces(runner.Piece{Tokens: 5}, runner.Piece{Start: 4, Tokens: 5}),
		"beyond bucket": pieces(runner.Piece{Start: 4, Tokens: 7}),
		"wraps":         pieces(runner.Piece{Start: math.MaxUint32, Tokens: 11}),
		"world 0":       runner.Join{},
		"rank":          runner.Join{World: 2, Rank: 2},
		"rank below 0":  runner.Join{World: 2, Rank: -1},
		"lr NaN":        runner.Commit{LR: math.NaN()},
		"lr negative":   runner.Commit{LR: -1},
		"load nothing":  runner.Load{},
		"image nothing": runner.Image{Write: true},
		"what":          runner.Evaluate{What: "", Count: 1},
		"count 0":       runner.Evaluate{What: "plain"},
	} {
		b, err := encode(orderFrame(head{runner.OrderType(o), 1, 1}, o))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := DecodeOrder(b); err == nil || runner.KindOf(err) != runner.Invalid {
			t.Errorf("%s: decode: got %v, want kind invalid", name, err)
		}
		if _, err := EncodeOrder(1, o); err == nil {
			t.Errorf("%s: encode: accepted", name)
		}
	}
}

// TestFrameTooLarge: a row of too many pieces is refused, not cut.
func TestFrameTooLarge(t *testing.T) {
	plan := runner.RowPlan{Row: 1, Bucket: math.MaxUint32}
	for i := range uint32(6000) {
		plan.Pieces = append(plan.Pieces, runner.Piece{Sample: 1 << 30, Start: 1<<30 + i, Tokens: 1, Anchors: 1})
	}
	_, err := EncodeOrder(1, runner.Produce{RowPlan: plan, Slot: runner.Slot{Arena: 1}, Version: 1})
	if err == nil || runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), "65536") {
		t.Errorf("got %v, want kind invalid naming the limit", err)
	}
}
