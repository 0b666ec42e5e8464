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
	CPUSeconds   map[string][]float64 `json:"cpu_seconds"` // without what others took of the core
	Python       string               `json:"python"`
	Torch        string               `json:"torch"`
	Numpy        string               `json:"numpy"`
}

// Handoff measures a row of some MiB of hidden states from one process to
// another. On a CPU, a row through a slot within one process comes first, beside
// a plain memcpy of the same size into warm memory.
func Handoff(ctx context.Context, p *Python, d Devices, mebibytes, rounds int) (*Report, error) {
	r := start("handoff")
	r.on(d)
	row := RowOf(mebibytes, d.OnGPU())
	if !d.OnGPU() {
		var h handoffs
		if err := p.run(ctx, &h, "handoff.py", fmt.Sprint(mebibytes), fmt.Sprint(rounds)); err != nil {
			return nil, err
		}
		if err := r.handoffs(h); err != nil {
			return nil, err
		}
		r.Versions["numpy"] = h.Numpy
	}
	if err := r.Pairs(ctx, p, d, row, rounds); err != nil {
		return nil, err
	}
	r.Facts["row"] = fmt.Sprintf("%d tokens of %d elements, %s: %d MiB, median of %d rounds", row.Tokens, row.Width, row.DType, mebibytes, rounds)
	return r.done(), nil
}

// measures are handoff.py's, in the order of the table; the first is the baseline.
var measures = []struct {
	name, text string
	copies     bool // and nothing else: held to the goal
}{
	{"memcpy", "memcpy", false},
	{"copy_in", "copy into the slot", true},
	{"copy_out", "copy out of the slot", true},
	{"write_row", "write row: copy, checksum, header", false},
	{"write_row_layers", "write row, five layers side by side", false},
	{"read_row", "read row: copy, checksum, header", false},
	{"checksum", "checksum alone", false},
	{"zlib_crc32", "zlib crc32 of every byte, for comparison", false},
}

// handoffs adds the median speeds by the clock, then by CPU time, and their
// ratio to memcpy's.
func (r *Report) handoffs(h handoffs) error {
	for _, by := range []struct {
		seconds map[string][]float64
		suffix  string
		goal    *Goal
	}{{h.Seconds, "", ratioAtLeast(0.9)}, {h.CPUSeconds, ", CPU time", nil}} {
		base := 0.0
		for _, m := range measures {
			seconds := slices.Clone(by.seconds[m.name])
			if len(seconds) == 0 || h.Bytes[m.name] == 0 {
				return runner.Errorf(runner.Internal, "read result of handoff.py: %s: want figures, got none", m.name+by.suffix)
			}
			slices.Sort(seconds)
			speed := float64(h.Bytes[m.name]) / quantile(seconds, 0.5) / 1e9
			if base == 0 {
				base = speed
			}
			var goal *Goal
			if m.copies {
				goal = by.goal
			}
			r.add(m.text+by.suffix, speed, "GB/s", speed/base, goal)
		}
	}
	return nil
}
