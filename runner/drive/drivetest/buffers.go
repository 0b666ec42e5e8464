package drivetest

import (
	"crypto/sha256"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Batch is a sum over rows of what each held, whoever trained it and in which
// order: what stands for a gradient here. A row too many or too few is another sum.
type Batch [4]uint64

// Add adds another sum.
func (b *Batch) Add(o Batch) {
	for i := range b {
		b[i] += o[i]
	}
}

// batchOf is one row's part, by the bytes that came with it.
func batchOf(payload []byte) (b Batch) {
	d := sha256.Sum256(payload)
	for i := range b {
		for _, x := range d[8*i : 8*i+8] {
			b[i] = b[i]<<8 | uint64(x)
		}
	}
	return b
}

// buffer is one of a drafter's two row buffers.
type buffer struct {
	row      runner.Row
	pulling  bool
	trained  bool // since it was pulled
	part     Batch
	poisoned bool // its loss is not a number
}

// reserve chooses the buffer that a pull fills, by the rule of proto/lane.md.
func (w *Worker) reserve(row runner.Row) *buffer {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := &w.buffers[w.victim()]
	*b = buffer{row: row, pulling: true}
	return b
}

// victim gives an empty buffer, else a trained one, the lower row first, else
// the higher row; never one that is being filled. w.mu is held.
func (w *Worker) victim() int {
	a, b := w.buffers[0], w.buffers[1]
	switch {
	case a.row == 0 || b.pulling:
		return 0
	case b.row == 0 || a.pulling:
		return 1
	case a.trained != b.trained:
		if a.trained {
			return 0
		}
		return 1
	case (a.row < b.row) == a.trained:
		return 0
	}
	return 1
}

// filled notes what a pull brought, or that it brought nothing.
func (w *Worker) filled(b *buffer, payload []byte, poisoned bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if payload == nil {
		*b = buffer{}
		return
	}
	b.pulling, b.part, b.poisoned = false, batchOf(payload), poisoned
}

// held gives a row that is in a buffer.
func (w *Worker) held(row runner.Row) (b buffer, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.buffers {
		if c := &w.buffers[i]; c.row == row && !c.pulling {
			return *c, true
		}
	}
	return buffer{}, false
}

// markTrained notes that a row's trained is answered, which an abort does not
// take away.
func (w *Worker) markTrained(row runner.Row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.buffers {
		if b := &w.buffers[i]; row != 0 && b.row == row {
			b.trained = true
		}
	}
}

// drop empties the buffers of committed rows.
func (w *Worker) drop(rows []runner.RowLoss) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range rows {
		for i := range w.buffers {
			if w.buffers[i].row == v.Row {
				w.buffers[i] = buffer{}
			}
		}
	}
}
