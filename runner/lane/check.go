package lane

import (
	"fmt"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Bounds of proto/lane.md.
const (
	maxTensors       = 16
	maxDims          = 8
	maxName          = 64
	maxMessage       = 2048
	maxHint          = 1024
	maxTraceback     = 40
	maxTracebackLine = 300

	unknownKind = runner.Kind(255)
	slotHeader  = 64 // a slot's header, and the alignment of what follows
)

// checkOrder refuses values that the schema forbids whatever the state of the
// receiver. Both sides run it: what is not sent need not be refused.
func checkOrder(o runner.Order) error {
	switch o := o.(type) {
	case runner.MapArena:
		return first(oneOf("kind", o.Kind, runner.ArenaMemfd, runner.ArenaCUDA), checkSlots(o.Arena, o.Slots, o.SlotBytes))
	case runner.CreateArena:
		return first(oneOf("kind", o.Kind, runner.ArenaCUDA), checkSlots(o.Arena, o.Slots, o.SlotBytes))
	case runner.Produce:
		return first(checkPlan(o.RowPlan), atLeast("arena", uint64(o.Slot.Arena), 1),
			atLeast("version", uint64(o.Version), 1))
	case runner.Pull:
		return first(checkPlan(o.RowPlan), checkHandle(o.Handle))
	case runner.Join:
		if o.Rank < 0 || uint64(o.Rank) >= uint64(o.World) {
			return fmt.Errorf("rank: want 0 to world-1 = %d, got %d", int64(o.World)-1, o.Rank)
		}
	case runner.Commit:
		if !finite(o.LR) || o.LR < 0 {
			return fmt.Errorf("lr: want finite and not negative, got %g", o.LR)
		}
	case runner.Load:
		return atLeast("nbytes", o.NBytes, 1)
	case runner.Image:
		if o.Write {
			return atLeast("nbytes", o.NBytes, 1)
		}
	case runner.Evaluate:
		return first(checkWhat(o.What), atLeast("count", uint64(o.Count), 1))
	}
	return nil
}

func checkSlots(a runner.Arena, slots uint32, slotBytes uint64) error {
	return first(atLeast("arena", uint64(a), 1), atLeast("slots", uint64(slots), 1), atLeast("slot_bytes", slotBytes, slotHeader))
}

// checkReply refuses values that the schema forbids in a reply.
func checkReply(r runner.Reply) error {
	switch r := r.(type) {
	case runner.Mapped:
		return atLeast("arena", uint64(r.Arena), 1)
	case runner.Created:
		return atLeast("arena", uint64(r.Arena), 1)
	case runner.Produced:
		return first(atLeast("row", uint64(r.Row), 1), checkHandle(r.Handle))
	case runner.Pulled:
		return atLeast("row", uint64(r.Row), 1)
	case runner.Voted:
		return checkVote(r)
	case runner.Saved:
		if !r.Written && r.Image != (runner.Digest{}) {
			return fmt.Errorf("image: want zeros where nothing was written")
		}
	case runner.Evaluated:
		return checkWhat(r.What)
	case runner.Failed:
		return checkFailed(r)
	}
	return nil
}

func checkPlan(p runner.RowPlan) error {
	end := uint64(0)
	for i, piece := range p.Pieces {
		if piece.Tokens == 0 || uint64(piece.Start) < end {
			return fmt.Errorf("pieces[%d]: want tokens and a start of at least %d, got %d tokens at %d", i, end, piece.Tokens, piece.Start)
		}
		end = uint64(piece.Start) + uint64(piece.Tokens)
	}
	if end > uint64(p.Bucket) {
		return fmt.Errorf("pieces: want an end of at most bucket = %d, got %d", p.Bucket, end)
	}
	return first(atLeast("row", uint64(p.Row), 1), atLeast("pieces", uint64(len(p.Pieces)), 1))
}

// checkHandle makes a handle safe to compute with; whether it fits its arena
// is for whoever knows the arena.
func checkHandle(h runner.Handle) error {
	if len(h.Tensors) == 0 || len(h.Tensors) > maxTensors {
		return fmt.Errorf("handle.tensors: want 1 to %d, got %d", maxTensors, len(h.Tensors))
	}
	end := uint64(slotHeader)
	for i, t := range h.Tensors {
		if err := checkTensor(t); err != nil {
			return fmt.Errorf("handle.tensors[%d]: %w", i, err)
		}
		if t.Offset < end || t.Offset%slotHeader != 0 || t.Offset > math.MaxInt64 || t.NBytes > math.MaxInt64-t.Offset {
			return fmt.Errorf("handle.tensors[%d].offset: want a multiple of %d, at least %d, got %d and %d bytes",
				i, slotHeader, end, t.Offset, t.NBytes)
		}
		end = t.Offset + t.NBytes
	}
	return first(atLeast("handle.arena", uint64(h.Arena), 1), atLeast("handle.version", uint64(h.Version), 1))
}

func checkTensor(t runner.Tensor) error {
	size, ok := ElementSize(t.DType)
	if !ok {
		return fmt.Errorf("dtype: want F32, BF16, F16, I64, I32, U8 or BOOL, got %.20q", t.DType)
	}
	if t.Name == "" || len(t.Name) > maxName || !utf8.ValidString(t.Name) {
		return fmt.Errorf("name: want 1 to %d bytes of UTF-8, got %d", maxName, len(t.Name))
	}
	if len(t.Shape) > maxDims {
		return fmt.Errorf("shape: want at most %d dimensions, got %d", maxDims, len(t.Shape))
	}
	for _, n := range t.Shape {
		over, product := bits.Mul64(size, n)
		if over != 0 {
			return fmt.Errorf("shape: %d is too large", t.Shape)
		}
		size = product
	}
	if size != t.NBytes {
		return fmt.Errorf("nbytes: want %d for %s %d, got %d", size, t.DType, t.Shape, t.NBytes)
	}
	return nil
}

// ElementSize gives the bytes of one element of a safetensors dtype that the lane allows.
func ElementSize(dtype string) (size uint64, ok bool) {
	switch dtype {
	case "I64":
		return 8, true
	case "F32", "I32":
		return 4, true
	case "BF16", "F16":
		return 2, true
	case "U8", "BOOL":
		return 1, true
	}
	return 0, false
}

// checkVote refuses a vote that calls itself finite and is not.
func checkVote(v runner.Voted) error {
	all := finite(float64(math.Float32frombits(v.Weight))) && finite(float64(math.Float32frombits(v.Norm)))
	for _, l := range v.Rows {
		all = all && finite(l.Numerator) && finite(l.Denominator)
	}
	if v.Finite && !all {
		return fmt.Errorf("finite: want false where a figure is not finite, got true")
	}
	return nil
}

func checkFailed(f runner.Failed) error {
	if _, ok := runner.ParseKind(f.Kind.String()); !ok {
		return fmt.Errorf("kind: unknown")
	}
	if len(f.Traceback) > maxTraceback {
		return fmt.Errorf("traceback: want at most %d lines, got %d", maxTraceback, len(f.Traceback))
	}
	for i, line := range f.Traceback {
		if err := text(fmt.Sprintf("traceback[%d]", i), line, maxTracebackLine); err != nil {
			return err
		}
	}
	return first(text("message", f.Message, maxMessage), text("hint", f.Hint, maxHint))
}

func checkWhat(s string) error { return oneOf("what", s, "decode", "plain", "loss") }

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func text(name, s string, limit int) error {
	if len(s) > limit || !utf8.ValidString(s) {
		return fmt.Errorf("%s: want at most %d bytes of UTF-8, got %d", name, limit, len(s))
	}
	return nil
}

func atLeast(name string, got, want uint64) error {
	if got < want {
		return fmt.Errorf("%s: want at least %d, got %d", name, want, got)
	}
	return nil
}

func oneOf(name, got string, want ...string) error {
	for _, w := range want {
		if got == w {
			return nil
		}
	}
	return fmt.Errorf("%s: want one of %q, got %.20q", name, want, got)
}

// first gives the first error, or nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
