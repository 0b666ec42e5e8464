package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/dflash-runner/dflash-runner/cmd/internal/machine"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// Devices are where a bench computes: the CPU, or some GPUs of this machine.
type Devices struct {
	GPUs   []placement.GPU // empty: the CPU
	Driver string
	InUse  string // by others, as far as it can be seen
}

// Choose finds the devices that want asks for: auto is a GPU where there is
// one, else the CPU. CUDA_VISIBLE_DEVICES hides GPUs, and free ones come first.
// Too few GPUs are an error of kind exhausted.
func Choose(ctx context.Context, want string, gpus int) (Devices, error) {
	switch want {
	case placement.CPU:
		if gpus > 0 {
			return Devices{}, runner.Errorf(runner.Invalid, "choose devices: --gpus: want none on a CPU, got %d", gpus)
		}
		return Devices{}, nil
	case "auto", "cuda":
	default:
		return Devices{}, runner.Errorf(runner.Invalid, "choose devices: --device: want auto, cuda or cpu, got %q", want)
	}
	all, chosen, _, err := machine.GPUs(ctx, nil, false)
	if err != nil {
		return Devices{}, err
	}
	if len(chosen) == 0 && want == "auto" && gpus == 0 {
		return Devices{}, nil
	}
	if least := max(1, gpus); len(chosen) < least {
		return Devices{}, runner.Errorf(runner.Exhausted, "choose devices: want %d of the machine's GPUs, got %d", least, len(chosen)).
			WithHint("--device cpu measures the same way at small shapes; `dflash-runner doctor` says which GPUs there are")
	}
	d := Devices{GPUs: chosen[:max(1, gpus)]}
	var used []string
	for _, g := range d.GPUs {
		if g.Busy != "" {
			used = append(used, fmt.Sprintf("GPU %d: %s", g.Index, g.Busy))
		}
	}
	d.InUse, d.Driver = strings.Join(used, "; "), all[0].Driver
	return d, nil
}

// OnGPU says whether these are GPUs.
func (d Devices) OnGPU() bool { return len(d.GPUs) > 0 }

// devicesOf are those that a run's workers were on, as this machine names them.
func devicesOf(ctx context.Context, workers []admin.SummaryWorker) (Devices, error) {
	used := map[string]bool{}
	for _, w := range workers {
		used[w.Device] = w.Device != placement.CPU
	}
	d := Devices{}
	if len(used) == 1 && !used[workers[0].Device] {
		return d, nil
	}
	all, gpus, _, err := machine.GPUs(ctx, nil, true)
	if err != nil {
		return d, err
	}
	for _, g := range gpus {
		if used[g.UUID] {
			d.GPUs, d.Driver = append(d.GPUs, g), all[0].Driver
		}
	}
	return d, nil
}

// place is one of them as a process is placed on it: cpu, or a UUID. An index
// past the last is the last.
func (d Devices) place(i int) string {
	if !d.OnGPU() {
		return placement.CPU
	}
	return d.GPUs[min(i, len(d.GPUs)-1)].UUID
}

// told is one of them as its process is told it, which sees no other.
func (d Devices) told() string {
	if !d.OnGPU() {
		return placement.CPU
	}
	return "cuda:0"
}

// String names the devices for a report.
func (d Devices) String() string {
	if !d.OnGPU() {
		return placement.CPU
	}
	names := make([]string, len(d.GPUs))
	for i, g := range d.GPUs {
		names[i] = g.Name
	}
	return strings.Join(names, " and ")
}

// on puts into a report where it was measured.
func (r *Report) on(d Devices) {
	r.Device = d.String()
	if d.Driver != "" {
		r.Versions["driver"] = d.Driver
	}
	if d.InUse != "" {
		r.Facts["in use by others"] = d.InUse
	}
}
