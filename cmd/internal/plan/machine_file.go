package plan

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// Described is a machine that is described, not looked at, as JSON with these
// fields and no other.
type Described struct {
	Format int    `json:"format"` // 1
	Name   string `json:"name"`
	Nodes  int    `json:"nodes"` // alike; a plan is of one of them
	Cores  int    `json:"cores"` // of a node
	Memory uint64 `json:"memory_bytes"`
	GPUs   []struct {
		Name   string `json:"name"`
		Memory uint64 `json:"memory_bytes"`
		Count  int    `json:"count"`
	} `json:"gpus"`
	Apart [][2]int `json:"no_peer,omitempty"` // pairs of GPUs, by index, that do not read one another's memory
}

// The largest machine that is described.
const (
	maxNodes = 4096
	maxGPUs  = 256
	maxCores = 1 << 16
)

// ParseMachine reads a described machine. What cannot be one is of kind invalid.
func ParseMachine(text []byte) (Described, error) {
	var d Described
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, runner.Errorf(runner.Invalid, "read machine: %w", err)
	}
	gpus := 0
	for i, g := range d.GPUs {
		if g.Count < 1 || g.Count > maxGPUs || g.Memory < 1<<20 || g.Name == "" {
			return d, runner.Errorf(runner.Invalid, "read machine: gpus[%d]: want a name, at least a MiB of memory and 1 to %d of them, got %q, %d and %d", i, maxGPUs, g.Name, g.Memory, g.Count)
		}
		gpus += g.Count
	}
	switch {
	case d.Format != 1:
		return d, runner.Errorf(runner.Invalid, "read machine: format: want 1, got %d", d.Format)
	case d.Nodes < 1 || d.Nodes > maxNodes || d.Cores < 1 || d.Cores > maxCores || gpus > maxGPUs:
		return d, runner.Errorf(runner.Invalid, "read machine: want 1 to %d nodes, 1 to %d cores and at most %d GPUs, got %d, %d and %d", maxNodes, maxCores, maxGPUs, d.Nodes, d.Cores, gpus)
	}
	for i, p := range d.Apart {
		if min(p[0], p[1]) < 0 || max(p[0], p[1]) >= gpus {
			return d, runner.Errorf(runner.Invalid, "read machine: no_peer[%d]: want two of %d GPUs, got %d and %d", i, gpus, p[0], p[1])
		}
	}
	return d, nil
}

// For gives a node of the machine as a configuration may use it.
func (d Described) For(c *config.Config) (Machine, error) {
	m := Machine{Cores: d.Cores, Available: d.Memory}
	if c.Workers.Device != "cuda" {
		return m, nil
	}
	var found []placement.Found
	for _, g := range d.GPUs {
		for range g.Count {
			i := len(found)
			found = append(found, placement.Found{Index: i, UUID: fmt.Sprintf("GPU-described-%d", i), Name: g.Name, Bytes: g.Memory})
		}
	}
	for _, p := range d.Apart {
		m.Links.NoPeer = append(m.Links.NoPeer, [2]string{found[p[0]].UUID, found[p[1]].UUID})
	}
	gpus, err := placement.Choose(found, placement.Asked{Devices: c.Workers.Devices})
	m.GPUs = gpus
	return m, err
}
