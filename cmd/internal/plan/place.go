package plan

import (
	"fmt"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// place puts workers on devices, with what they take there.
func (w work) place(p *Plan, m Machine) error {
	c, process := w.config, uint64(processBytes)
	if w.cuda {
		process = gpuProcessBytes
	}
	of := w.memory(w.onTarget())
	placed, err := placement.Place(w.wanted(m, of))
	if err != nil {
		return err
	}
	if p.Arenas.Kind, p.Arenas.Reason, err = placement.ArenaKind(c.Arenas.Kind, w.cuda, placed.Workers, m.Links); err != nil {
		return err
	}
	if p.Arenas.Kind == runner.ArenaMemfd {
		p.Arenas.Bytes = p.Arenas.SlotBytes * uint64(p.Arenas.Slots*p.Arenas.Count)
	}
	for _, x := range placed.Workers {
		mem := of[x.Worker.Role]
		if p.Arenas.Kind == runner.ArenaMemfd {
			mem.Slots = 0
		}
		host := process
		if x.Worker.Role == runner.Drafter {
			host += p.ImageBytes // the copy that an image is written from
		}
		p.Workers = append(p.Workers, Worker{x.Worker, x.Device, mem.Total(), mem.Allocated(), host, mem})
	}
	p.Turns = placed.Turns
	for _, g := range m.GPUs {
		if d := p.on(g); d.Wanted > 0 {
			p.Devices = append(p.Devices, d)
		}
	}
	p.note()
	return nil
}

// memory is what a worker of each role takes on its device.
func (w work) memory(target placement.Use) map[runner.Role]placement.Memory {
	c := w.config
	dense, drafters := c.Drafter.Attention == "sdpa", int(c.Workers.Drafters)
	repeats := drafters == 1 || c.Training.RowsPerStep*c.Training.DrawsPerRow > drafters // else peers sum in every backward, and none is recorded
	drafter := placement.Use{Element: bytesOf(c.Training.ComputeDType), CUDA: w.cuda, Dense: dense,
		Replay: w.cuda && !dense && repeats && c.Drafter.Flex.Replay == "true", CopyKeys: c.Drafter.Flex.CopyKeys == "true",
		Peers: drafters != 1, FP8: c.Drafter.Precision == config.PrecisionFP8}
	target.Replay, target.Tiles = w.cuda && c.Target.Replay == "true", c.Target.Attention == "flex"
	return map[runner.Role]placement.Memory{
		runner.Target:  placement.TargetMemory(w.target, w.drafter, w.rows, target),
		runner.Drafter: placement.DrafterMemory(w.drafter, w.rows, drafter),
	}
}

// wanted is what the configuration asks of placement; a count of 0 is auto.
func (w work) wanted(m Machine, of map[runner.Role]placement.Memory) placement.Wanted {
	c := w.config
	return placement.Wanted{Targets: int(c.Workers.Targets), Drafters: int(c.Workers.Drafters), CUDA: w.cuda, GPUs: m.GPUs,
		Colocate: c.Workers.Colocate, Turns: c.Workers.Turns, Threads: c.Workers.Threads, Cores: m.Cores,
		TargetBytes: of[runner.Target].Total(), DrafterBytes: of[runner.Drafter].Total()}
}

// on adds up what a GPU's workers take.
func (p *Plan) on(g placement.GPU) Device {
	d := Device{UUID: g.UUID, Index: g.Index, Name: g.Name, Available: g.Bytes}
	for _, x := range p.Workers {
		if x.Device == g.UUID {
			d.Wanted += x.MemoryBytes
		}
	}
	return d
}

// note says what is not as one might expect of a run on GPUs.
func (p *Plan) note() {
	if p.Precision == config.PrecisionFP8 {
		p.Notes = append(p.Notes, "drafter.precision: fp8 has not been measured yet, neither its speed nor what it does to the loss: hold its losses against a run without it")
	}
	if p.Device != "cuda" {
		return
	}
	if p.Attention == "sdpa" {
		p.Notes = append(p.Notes, "drafter.attention: sdpa on a GPU is dense, with explicit masks: slower and larger than flex, which is the default there")
	}
	if p.RowAttention == "sdpa" {
		p.Notes = append(p.Notes, "target.attention: sdpa on a GPU is the model's own, under dense masks: slower and larger than flex, which is the default there for bfloat16")
	}
	for _, d := range p.Devices {
		var names []string
		for _, x := range p.Workers {
			if x.Device == d.UUID {
				names = append(names, x.Name.String())
			}
		}
		if len(names) > 1 {
			p.Notes = append(p.Notes, fmt.Sprintf("%s share GPU %d and take turns", strings.Join(names, " and "), d.Index))
		}
	}
}
