package drivetest

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
)

// create makes an arena as a target on a GPU does, of host memory: what stays
// of it without this process is the descriptor alone.
func (w *Worker) create(l Lane, seq uint64, o runner.CreateArena, fault Fault) error {
	f, err := arena.Memfd("model arena", uint64(o.Slots)*o.SlotBytes)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.arenas[o.Arena] = mapped{f, o.SlotBytes}
	w.mu.Unlock()
	answer := runner.Created{Arena: o.Arena}
	if fault == Outside || fault == Lie {
		answer.Arena++
	}
	if err := l.SendReply(seq, answer, f); err != nil || fault != Late {
		return err
	}
	return ErrDied
}

// body is what a row's payload is, whoever makes it.
func body(r runner.RowPlan) []byte {
	h := sha256.New()
	for _, p := range r.Pieces {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(p.Sample)<<32|uint64(p.Draw)))
	}
	out := make([]byte, payload)
	for i, seed := 0, h.Sum(nil); i < payload; i++ {
		out[i] = seed[i%len(seed)] ^ byte(i)
	}
	return out
}

// produce writes a row into its slot as proto/lane.md lays it out.
func (w *Worker) produce(o runner.Produce, fault Fault) []runner.Reply {
	w.mu.Lock()
	m, ok := w.arenas[o.Slot.Arena]
	w.mu.Unlock()
	if !ok {
		return stale("produce")
	}
	b := body(o.RowPlan)
	head := make([]byte, 64)
	copy(head, "DFSLOT01")
	binary.LittleEndian.PutUint64(head[8:], uint64(o.Version))
	binary.LittleEndian.PutUint64(head[16:], uint64(o.Row))
	binary.LittleEndian.PutUint64(head[24:], payload)
	crc := crc32.ChecksumIEEE(b)
	binary.LittleEndian.PutUint32(head[32:], crc)
	if _, err := m.file.WriteAt(append(head, b...), int64(uint64(o.Slot.Index)*m.slotBytes)); err != nil {
		return one(runner.Failed{Kind: runner.Internal, Message: err.Error()})
	}
	t := runner.Tensor{Name: "tokens", DType: "U8", Shape: []uint64{payload}, Offset: 64, NBytes: payload}
	if fault == Outside {
		t.Offset = m.slotBytes
	}
	return one(runner.Produced{Row: o.Row, BusyUS: 1, Handle: runner.Handle{Arena: o.Slot.Arena, Slot: o.Slot.Index,
		Version: o.Version, CRC: crc, Tensors: []runner.Tensor{t}}})
}

func (w *Worker) evaluate(o runner.Evaluate) []runner.Reply {
	if o.What == "decode" && !w.plain {
		return one(runner.Failed{Kind: runner.Invalid, Message: "decode before plain"})
	}
	w.plain = w.plain || o.What == "plain"
	n := uint64(o.Count)
	r := runner.Evaluated{Step: o.Step, What: o.What, BusyUS: 10 * n, Lossless: true}
	if o.What == "loss" {
		r.Numerator, r.Denominator = float64(n)/float64(o.Step+1), float64(n)
		return one(r)
	}
	r.Tokens, r.Forwards = 8*n, 8*n
	if o.What == "decode" {
		r.Forwards = 2 * n
	}
	for range n {
		r.Prompts = append(r.Prompts, runner.PromptResult{Tokens: 8, Forwards: uint32(r.Forwards / n), Equal: true, BusyUS: 10})
	}
	return one(r)
}
