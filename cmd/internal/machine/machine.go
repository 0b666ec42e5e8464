// Package machine reads what a plan is made for: cores, memory, and the GPUs
// that a configuration may use.
package machine

import (
	"context"
	"io"
	"os"
	"runtime"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/doctor"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// Machine is this machine, for a configuration.
type Machine struct {
	plan.Machine
	Memory arena.Limit // where Available comes from
	GPUs   []doctor.GPU
}

// Read looks at the machine. GPUs are looked for only where c runs on them.
func Read(ctx context.Context, c *config.Config) (Machine, error) {
	limit, err := arena.Available()
	if err != nil {
		return Machine{}, err
	}
	m := Machine{Machine: plan.Machine{Cores: runtime.NumCPU(), Available: limit.Have}, Memory: limit}
	if c.Workers.Device != "cuda" {
		return m, nil
	}
	m.GPUs, m.Machine.GPUs, m.Links, err = GPUs(ctx, c.Workers.Devices, c.Workers.BusyDevices == "allow")
	return m, err
}

// GPUs lists all GPUs of the machine, those that may be placed on, and what
// keeps any of them from reading another's memory.
func GPUs(ctx context.Context, named []string, allowBusy bool) (all []doctor.GPU, chosen []placement.GPU, links placement.Links, err error) {
	all, apart, err := doctor.GPUs(ctx)
	if err != nil {
		return nil, nil, links, runner.Errorf(runner.Unavailable, "list GPUs: nvidia-smi: %w", err).WithHint("look at the NVIDIA driver: `dflash-runner doctor`, dmesg")
	}
	found := make([]placement.Found, len(all))
	for i, g := range all {
		found[i] = g.Found()
	}
	asked := placement.Asked{Devices: named, AllowBusy: allowBusy}
	if list, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		asked.Visible = &list
	}
	chosen, err = placement.Choose(found, asked)
	return all, chosen, doctor.Readings{GPUs: all, NoPeer: apart}.Links(), err
}

// Target is the target's size: what its directory says, or the embedded
// recipe's.
func Target(c *config.Config) (config.Model, error) {
	if c.Target.Directory == "" {
		return c.EmbeddedModel(), nil
	}
	return config.ReadModel(c.Target.Directory)
}

// maxCosts bounds a file of costs, in bytes.
const maxCosts = 64 << 20

// Costs reads the file that costs.from names; nothing where none is needed.
func Costs(c *config.Config) ([]byte, error) {
	if c.Costs.From == "" || c.Workers.Targets != config.Auto && c.Workers.Drafters != config.Auto {
		return nil, nil
	}
	return Trace(c.Costs.From, c.Place("costs.from")+": costs.from")
}

// Trace reads a file of costs; where says who named it.
func Trace(path, where string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, runner.Errorf(runner.Invalid, "%s: %w", where, err).WithHint("give a trace of costs, or the summary.json of an earlier run")
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxCosts+1))
	if err != nil {
		return nil, runner.Errorf(runner.Invalid, "%s: %w", where, err).WithHint("give a trace of costs, or the summary.json of an earlier run")
	}
	if len(text) > maxCosts {
		return nil, runner.Errorf(runner.Invalid, "%s: want at most %d bytes, got more", where, maxCosts)
	}
	return text, nil
}
