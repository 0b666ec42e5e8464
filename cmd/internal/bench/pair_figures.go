package bench

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// pairMeasures in the order in which they are made: a copy needs the handle
// that was written or read before it. The first is the baseline.
var pairMeasures = []struct {
	name, text string
	whole      bool // moves the whole row
	across     bool // from one device to the other: held to the goal
}{
	{"plain", "plain copy of the same size", false, false},
	{"write_row", "write row: copy, checksum, header", true, false},
	{"read_row", "read row: copy, checksum, header", true, true},
	{"copy_in", "copy into the slot", false, false},
	{"copy_out", "pull: copy out of the slot", false, true},
}

// pairs adds median speeds with their ratio to the plain copy's. The goal is
// that of a hand-off between two GPUs.
func (r *Report) pairs(name string, size pairSize, seconds map[string][]float64, across bool) error {
	base := 0.0
	for _, m := range pairMeasures {
		taken := slices.Clone(seconds[m.name])
		if len(taken) == 0 {
			return runner.Errorf(runner.Internal, "read result of pair.py: %s: want figures, got none", m.name)
		}
		slices.Sort(taken)
		bytes := size.HiddenBytes
		if m.whole {
			bytes = size.PayloadBytes
		}
		speed, ratio := float64(bytes)/quantile(taken, 0.5)/1e9, 0.0
		if base == 0 {
			base = speed
		} else {
			ratio = speed / base
		}
		r.add(name+": "+m.text, speed, "GB/s", ratio, goalOn(across && m.across, ratioAtLeast(0.9)))
	}
	return nil
}
