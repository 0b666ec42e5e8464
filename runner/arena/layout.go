// Package arena makes the slotted memory that rows are handed over in: how a
// row lies in a slot, whether the machine has room, and the memory itself. Who
// may use which slot is the ledger's to decide (runner/lease).
package arena

import (
	"math"
	"math/bits"

	"github.com/dflash-runner/dflash-runner/runner"
)

const (
	// HeaderBytes is a slot's header (proto/lane.md, Slots), and the alignment
	// of the tensors that follow.
	HeaderBytes = 64
	pageBytes   = 4096 // a slot's size is a multiple of it
)

// Layout gives where the tensors of a row of bucket tokens lie in a slot, and
// the slot's size in bytes. Width is L*D, the elements of hidden states a
// token; dtype is theirs, "F32" or "BF16". Python's arena.layout gives the
// same, which proto/golden/layouts.json holds both to.
func Layout(bucket uint32, width uint64, dtype string) ([]runner.Tensor, uint64, error) {
	size := uint64(4)
	switch {
	case dtype == "BF16":
		size = 2
	case dtype != "F32":
		return nil, 0, runner.Errorf(runner.Invalid, "lay out slot: dtype: want F32 or BF16, got %q", dtype)
	}
	if bucket == 0 || width == 0 {
		return nil, 0, runner.Errorf(runner.Invalid, "lay out slot: want tokens and width, got %d and %d", bucket, width)
	}
	s := uint64(bucket)
	if over, total := bits.Mul64(s*size, width); over != 0 || total > math.MaxInt64/2 {
		return nil, 0, runner.Errorf(runner.Invalid, "lay out slot: %d tokens of %d %s do not fit any memory", bucket, width, dtype)
	}
	tensors := []runner.Tensor{
		{Name: "hidden", DType: dtype, Shape: []uint64{s, width}, NBytes: s * width * size},
		{Name: "tokens", DType: "I32", Shape: []uint64{s}, NBytes: 4 * s},
		{Name: "loss_mask", DType: "U8", Shape: []uint64{s}, NBytes: s},
		{Name: "documents", DType: "I32", Shape: []uint64{s}, NBytes: 4 * s},
	}
	end := uint64(HeaderBytes)
	for i := range tensors {
		tensors[i].Offset = roundUp(end, HeaderBytes)
		end = tensors[i].Offset + tensors[i].NBytes
	}
	return tensors, roundUp(end, pageBytes), nil
}

// CheckHandle says whether h, which the lane has checked in itself, fits an
// arena of the given number and shape. A worker that says otherwise broke the
// protocol: kind invalid.
func CheckHandle(h runner.Handle, id runner.Arena, slots uint32, slotBytes uint64) error {
	if h.Arena != id || h.Slot >= slots {
		return runner.Errorf(runner.Invalid, "check handle: want a slot of arena %d below %d, got %s",
			id, slots, runner.Slot{Arena: h.Arena, Index: h.Slot})
	}
	for _, t := range h.Tensors {
		if t.NBytes > slotBytes || t.Offset > slotBytes-t.NBytes {
			return runner.Errorf(runner.Invalid, "check handle: %s: want an end of at most %d, got %d bytes at %d",
				t.Name, slotBytes, t.NBytes, t.Offset)
		}
	}
	return nil
}

func roundUp(n, multiple uint64) uint64 { return (n + multiple - 1) / multiple * multiple }
