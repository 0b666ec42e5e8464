package drivetest

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/dflash-runner/dflash-runner/runner"
)

// poisoned reports whether a row holds the sample whose loss is not a number.
func (w *Worker) poisoned(r runner.RowPlan) bool {
	for _, p := range r.Pieces {
		if p.Sample+1 == w.Poison {
			return true
		}
	}
	return false
}

// pull reads the slot and refuses whatever is not the row; the payload is nil then.
func (w *Worker) pull(o runner.Pull) (runner.Reply, []byte) {
	w.mu.Lock()
	m, ok := w.arenas[o.Handle.Arena]
	w.mu.Unlock()
	if !ok {
		return stale("pull")[0], nil
	}
	b := make([]byte, 64+payload)
	if _, err := m.file.ReadAt(b, int64(uint64(o.Handle.Slot)*m.slotBytes)); err != nil {
		return runner.Failed{Kind: runner.Internal, Message: err.Error()}, nil
	}
	if binary.LittleEndian.Uint64(b[8:]) != uint64(o.Handle.Version) || binary.LittleEndian.Uint64(b[16:]) != uint64(o.Row) {
		return stale("pull")[0], nil
	}
	if string(b[64:]) != string(body(o.RowPlan)) || crc32.ChecksumIEEE(b[64:]) != o.Handle.CRC {
		return runner.Failed{Kind: runner.Internal, Message: "the payload is not the row's"}, nil
	}
	return runner.Pulled{Row: o.Row, BusyUS: 1}, b[64:]
}

func (w *Worker) train(seq uint64, o runner.Train, fault Fault) []runner.Reply {
	w.mu.Lock()
	aborted := w.aborted
	w.mu.Unlock()
	if w.isVoid(seq) {
		return one(runner.Failed{Kind: runner.Canceled, Message: "aborted"})
	}
	var row buffer
	held := true
	if o.Row != 0 {
		row, held = w.held(o.Row)
	}
	if o.Communicator != w.comm || o.Step != w.at+1 || !held {
		return stale("train")
	}
	if o.Micro == 0 {
		w.votes, w.part, w.bad = nil, Batch{}, false
	}
	if o.Row != 0 {
		v := runner.RowLoss{Row: o.Row, Numerator: 1 / float64(o.Step), Denominator: 1}
		if row.poisoned {
			v.Numerator, w.bad = math.NaN(), true
		}
		w.votes = append(w.votes, v)
		w.part.Add(row.part)
	}
	t := runner.Trained{Step: o.Step, Micro: o.Micro, Row: o.Row, BusyUS: 1}
	if !o.Last {
		w.markTrained(o.Row)
		return one(t)
	}
	if w.total = (Batch{}); w.Sum != nil {
		total, ok := w.Sum.wait(o.Communicator, w.world, w.part, aborted, w.Gone)
		if !ok {
			return one(runner.Failed{Kind: runner.Unavailable, Message: "the sum was broken off"})
		}
		w.total = total
	}
	w.markTrained(o.Row)
	return []runner.Reply{t, w.vote(o, fault)}
}

// vote is what a rank says of its share; the norm names the sum in its low bits.
func (w *Worker) vote(o runner.Train, fault Fault) runner.Voted {
	v := runner.Voted{At: o.At, Rows: w.votes, Weight: math.Float32bits(8),
		Norm: math.Float32bits(float32(o.Step)+0.5) ^ uint32(w.total[0]&0xfff), Finite: !w.bad}
	if fault == NaN && len(v.Rows) > 0 {
		v.Finite = false
		v.Rows[0].Numerator = math.NaN()
	}
	if fault == Spike {
		for i := range v.Rows {
			v.Rows[i].Numerator *= 100
		}
	}
	return v
}

func (w *Worker) commit(o runner.Commit, fault Fault) []runner.Reply {
	if o.Communicator != w.comm || o.Step != w.at && o.Step != w.at+1 {
		return stale("commit")
	}
	if o.Step == w.at+1 {
		w.at, w.chain = o.Step, o.Chain
		h := sha256.New()
		h.Write(w.state[:])
		h.Write(o.Chain[:])
		for _, x := range w.total {
			h.Write(binary.LittleEndian.AppendUint64(nil, x))
		}
		w.state = runner.Digest(h.Sum(nil))
		if fault == Drift {
			w.state[0]++
		}
	}
	w.drop(w.votes)
	w.votes = nil
	return one(runner.Committed{Step: o.Step})
}
