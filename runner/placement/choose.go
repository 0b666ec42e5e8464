package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Found is a GPU that the machine has.
type Found struct {
	Index     int // nvidia-smi's
	UUID      string
	Name      string
	Bytes     uint64 // of memory; 0: not known
	UsedBytes uint64
	Processes []int // that compute on it, as far as they can be seen
	MIG       bool  // split into instances
}

// Asked is which GPUs the configuration and the surroundings allow.
type Asked struct {
	Devices   []string // by index or UUID, in the order in which to use them; empty: all
	AllowBusy bool     // also those that other processes use
	Visible   *string  // CUDA_VISIBLE_DEVICES of this process, nil where it is not set
}

// idleBytes is how much memory may be in use on a GPU that nobody uses: the
// driver's own, and what a display takes. In a container other processes cannot
// be seen, but their memory can.
const idleBytes = 1 << 30

// Choose gives the GPUs that workers may be placed on, in order: as they are
// named, or the free ones first. One that is in use carries the reason, and is
// refused only when a worker would be put there.
func Choose(all []Found, a Asked) ([]GPU, error) {
	seen, err := visible(all, a.Visible)
	if err != nil {
		return nil, err
	}
	if len(a.Devices) == 0 {
		var out []GPU
		for _, f := range seen {
			if !f.MIG {
				out = append(out, f.gpu(a.AllowBusy))
			}
		}
		slices.SortStableFunc(out, func(a, b GPU) int { return cmp.Compare(min(len(a.Busy), 1), min(len(b.Busy), 1)) })
		return out, nil
	}
	var out []GPU
	for i, name := range a.Devices {
		at := slices.IndexFunc(seen, func(f Found) bool { return f.UUID == name || strconv.Itoa(f.Index) == name })
		if at < 0 {
			return nil, runner.Errorf(runner.Invalid, "place workers: workers.devices[%d]: want a GPU that this process may use, got %s; there are %s", i, name, namesOf(seen)).
				WithHint("`dflash-runner doctor` lists the machine's GPUs; CUDA_VISIBLE_DEVICES hides others")
		}
		f := seen[at]
		if f.MIG {
			return nil, runner.Errorf(runner.Invalid, "place workers: workers.devices[%d]: want a whole GPU, got GPU %d, which MIG splits", i, f.Index).
				WithHint("turn MIG off for it, or name another GPU")
		}
		if slices.ContainsFunc(out, func(g GPU) bool { return g.UUID == f.UUID }) {
			return nil, runner.Errorf(runner.Invalid, "place workers: workers.devices[%d]: want each GPU once, got GPU %d again as %s", i, f.Index, name)
		}
		out = append(out, f.gpu(a.AllowBusy))
	}
	return out, nil
}

// visible keeps what CUDA_VISIBLE_DEVICES leaves, in its order. As in CUDA, an
// entry that names nothing ends the list.
func visible(all []Found, list *string) ([]Found, error) {
	if list == nil {
		return all, nil
	}
	var out []Found
	for entry := range strings.SplitSeq(*list, ",") {
		entry = strings.TrimSpace(entry)
		at := slices.IndexFunc(all, func(f Found) bool {
			return strconv.Itoa(f.Index) == entry || len(entry) > len("GPU-") && strings.HasPrefix(f.UUID, entry)
		})
		if at < 0 {
			if strings.HasPrefix(entry, "MIG-") {
				return nil, runner.Errorf(runner.Invalid, "place workers: CUDA_VISIBLE_DEVICES: want whole GPUs, got %s", entry).
					WithHint("instances of MIG are not used: ask for whole GPUs")
			}
			break
		}
		out = append(out, all[at])
	}
	return out, nil
}

// gpu says what may be had of a GPU, and why it should be left alone.
func (f Found) gpu(allowBusy bool) GPU {
	g := GPU{UUID: f.UUID, Index: f.Index, Name: f.Name, Bytes: f.Bytes}
	switch {
	case allowBusy:
		g.Bytes -= min(g.Bytes, f.UsedBytes)
	case len(f.Processes) > 0:
		g.Busy = fmt.Sprintf("processes %v use it", f.Processes)
	case f.UsedBytes > idleBytes:
		g.Busy = fmt.Sprintf("%d MiB of its memory are in use", f.UsedBytes>>20)
	}
	return g
}

// InUse says why a GPU should be left alone, "" for one that is free.
func (f Found) InUse() string { return f.gpu(false).Busy }

func namesOf(all []Found) string {
	if len(all) == 0 {
		return "none"
	}
	names := make([]string, len(all))
	for i, f := range all {
		names[i] = fmt.Sprintf("%d (%s)", f.Index, f.UUID)
	}
	return strings.Join(names, ", ")
}
