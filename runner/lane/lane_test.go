package lane

import (
	"math"
	"reflect"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func testPlan() runner.RowPlan {
	return runner.RowPlan{Row: 7, Epoch: 1, Bucket: 512, Pieces: []runner.Piece{
		{Sample: 3, Draw: 0, Start: 0, Tokens: 200, Anchors: 10},
		{Sample: 70000, Draw: 2, Start: 200, Tokens: 312, Anchors: 22},
	}}
}

func testHandle() runner.Handle {
	return runner.Handle{Arena: 1, Slot: 2, Version: 1 << 40, CRC: 0xdeadbeef, Tensors: []runner.Tensor{
		{Name: "hidden", DType: "F32", Shape: []uint64{512, 480}, Offset: 64, NBytes: 983040},
		{Name: "tokens", DType: "I32", Shape: []uint64{512}, Offset: 983104, NBytes: 2048},
		{Name: "loss_mask", DType: "U8", Shape: []uint64{512}, Offset: 985152, NBytes: 512},
		{Name: "documents", DType: "I32", Shape: []uint64{512}, Offset: 985664, NBytes: 2048},
	}}
}

var testAt = runner.At{Lineage: 2, Communicator: 3, Step: 1 << 33}

func digest(fill byte) (d [32]byte) {
	for i := range d {
		d[i] = fill + byte(i)
	}
	return d
}

// testOrders holds one of each type or more; the golden files hold the same.
func testOrders() []runner.Order {
	return []runner.Order{
		runner.MapArena{Arena: 1, Kind: "memfd", Write: true, Slots: 3, SlotBytes: 1 << 32},
		runner.MapArena{Arena: math.MaxUint32, Kind: "memfd", Slots: 1, SlotBytes: 4096},
		runner.Produce{RowPlan: testPlan(), Slot: runner.Slot{Arena: 1, Index: 2}, Version: 128},
		runner.Pull{RowPlan: testPlan(), Handle: testHandle()},
		runner.Join{At: testAt, World: 2, Rank: 1},
		runner.Train{At: testAt, Micro: 255, Row: 256, Last: true},
		runner.Train{At: testAt},
		runner.Commit{At: testAt, LR: 6e-4, Chain: digest(1)},
		runner.Abort{At: testAt},
		runner.Image{At: testAt, Write: true, NBytes: 65535},
		runner.Image{At: testAt},
		runner.Load{At: testAt, NBytes: 65536},
		runner.Evaluate{Step: 300, What: "decode", First: 0, Count: 24, NewTokens: 96, NBytes: 1 << 20},
		runner.Evaluate{Step: 0, What: "loss", First: 8, Count: 8},
		runner.Drain{},
		runner.MapArena{Arena: 2, Kind: "cuda_vmm", Slots: 3, SlotBytes: 1 << 31},
		runner.CreateArena{Arena: 2, Kind: "cuda_vmm", Slots: 3, SlotBytes: 1 << 31},
	}
}

func testReplies() []runner.Reply {
	nan := math.Float32bits(float32(math.NaN()))
	return []runner.Reply{
		runner.Mapped{Arena: 1},
		runner.Produced{Row: 7, Handle: testHandle(), BusyUS: 12345},
		runner.Pulled{Row: math.MaxUint64, BusyUS: 0},
		runner.Joined{Communicator: 3},
		runner.Trained{Step: 9, Micro: 1, Row: 7, BusyUS: 32767},
		runner.Voted{At: testAt, Rows: []runner.RowLoss{{Row: 7, Numerator: 1.5, Denominator: 0.1}, {Row: 8, Numerator: math.Copysign(0, -1)}}, Weight: math.Float32bits(20.25), Norm: math.Float32bits(0.7), Finite: true},
		runner.Voted{At: testAt, Rows: []runner.RowLoss{{Row: 7, Numerator: math.Inf(1), Denominator: 4}}, Weight: 0, Norm: nan},
		runner.Voted{At: testAt, Rows: []runner.RowLoss{}, Finite: true},
		runner.Committed{Step: 9},
		runner.Aborted{Step: 9, Clean: true},
		runner.Taken{Step: 9, BusyUS: 70000},
		runner.Saved{Step: 9, Written: true, Image: digest(3), Parameters: digest(4), BusyUS: 1},
		runner.Saved{Step: 9, Parameters: digest(4)},
		runner.Loaded{Step: 9, Chain: digest(5), Parameters: digest(6)},
		runner.Evaluated{Step: 300, What: "decode", Tokens: 2304, Forwards: 512, BusyUS: 99, Lossless: true, Prompts: []runner.PromptResult{
			{Tokens: 96, Forwards: 20, Equal: true, BusyUS: 50}, {Tokens: 96, Forwards: 96, Looping: true, BusyUS: 49},
		}},
		runner.Evaluated{Step: 300, What: "loss", Numerator: 12.5, Denominator: 8, Prompts: []runner.PromptResult{}},
		runner.Drained{},
		runner.Failed{Kind: runner.Stale, Message: "pull row 7: want version 4, got 5", Hint: "", Traceback: []string{"Traceback (most recent call last):", "WorkerError: é"}},
		runner.Failed{Kind: runner.Fatal, Message: "m", Hint: "h", Traceback: []string{}},
		runner.Created{Arena: 2},
	}
}

func TestOrdersSurviveTheWire(t *testing.T) {
	for i, o := range testOrders() {
		b, err := EncodeOrder(uint64(i+1), o)
		if err != nil {
			t.Fatalf("%T: %v", o, err)
		}
		seq, back, err := DecodeOrder(b)
		if err != nil || seq != uint64(i+1) || !reflect.DeepEqual(back, o) {
			t.Errorf("%T: got %d %+v, %v, want %+v", o, seq, back, err, o)
		}
	}
}

func TestRepliesSurviveTheWire(t *testing.T) {
	for i, r := range testReplies() {
		b, err := EncodeReply(uint64(i+1), r)
		if err != nil {
			t.Fatalf("%T: %v", r, err)
		}
		seq, back, err := DecodeReply(b)
		if err != nil || seq != uint64(i+1) || !reflect.DeepEqual(back, r) {
			t.Errorf("%T: got %d %+v, %v, want %+v", r, seq, back, err, r)
		}
	}
}
