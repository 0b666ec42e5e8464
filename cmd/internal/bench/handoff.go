package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// handoffs is what handoff.py prints.
type handoffs struct {
	PayloadBytes uint64               `json:"payload_bytes"`
	Bytes        map[string]uint64    `json:"bytes"`
	Seconds      map[string][]float64 `json:"seconds"`
	Python       string               `json:"python"`
	Torch        string               `json:"torch"`
	Numpy        string               `json:"numpy"`
}

// Handoff measures a row of some MiB through a slot, beside a plain memcpy of
// the same size into warm memory of the same process.
func Handoff(ctx context.Context, p *Python, mebibytes, rounds int) (*Report, error) {
	r := start("handoff")
	var h handoffs
	if err := p.run(ctx, &h, "handoff.py", fmt.Sprint(mebibytes), fmt.Sprint(rounds)); err != nil {
		return nil, err
	}
	if err := r.handoffs(h); err != nil {
		return nil, err
	}
	r.Facts["python"], r.Facts["torch"], r.Facts["numpy"] = h.Python, h.Torch, h.Numpy
	r.Facts["row"] = fmt.Sprintf("%d MiB, median of %d rounds", h.PayloadBytes>>20, rounds)
	return r.done(), nil
}

// handoffs adds the median speeds, and their ratio to memcpy's.
func (r *Report) handoffs(h handoffs) error {
	base := 0.0
	for _, m := range []struct {
		name, text string
		goal       *Goal
	}{
		{"memcpy", "memcpy", nil},
		{"copy_in", "copy into the slot", ratioAtLeast(0.9)},
		{"copy_out", "copy out of the slot", ratioAtLeast(0.9)},
		{"write_row", "write row: copy, checksum, header", nil},
		{"write_row_layers", "write row, five layers side by side", nil},
		{"read_row", "read row: copy, checksum, header", nil},
		{"checksum", "checksum alone", nil},
		{"zlib_crc32", "zlib crc32 of every byte, for comparison", nil},
	} {
		seconds := slices.Clone(h.Seconds[m.name])
		if len(seconds) == 0 || h.Bytes[m.name] == 0 {
			return runner.Errorf(runner.Internal, "read result of handoff.py: %s: want figures, got none", m.name)
		}
		slices.Sort(seconds)
		speed := float64(h.Bytes[m.name]) / quantile(seconds, 0.5) / 1e9
		if base == 0 {
			base = speed
		}
		r.add(m.text, speed, "GB/s", speed/base, m.goal)
	}
	return nil
}
