// Package plan works out what a configuration will take on a machine, before
// anything is started: placement, memory, shapes, and when the first step will
// be done. It is pure: the machine is given to it.
package plan

import (
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// imagesKept is how many images are in memory at once, besides one being written.
const imagesKept = 2

// processBytes is the host memory of one worker before it has a model: Python,
// torch and transformers, measured on a CPU and rounded up.
const processBytes = 640 << 20

// Machine is what there is.
type Machine struct {
	Cores     int
	Available uint64 // bytes of memory that may still be taken; 0: not known
	GPUs      []placement.GPU
	Links     placement.Links // between them
}

// Plan is `plan --json`.
type Plan struct {
	Name        string   `json:"name"`
	Workers     []Worker `json:"workers"`
	Turns       Turns    `json:"turns"`
	Shapes      Shapes   `json:"shapes"`
	Arenas      Arenas   `json:"arenas"`
	ImageBytes  uint64   `json:"image_bytes"`
	HostBytes   uint64   `json:"host_bytes"`      // arenas and images
	MemoryBytes uint64   `json:"memory_bytes"`    // host memory in all, workers included
	Available   uint64   `json:"available_bytes"` // 0: not known
	Fits        bool     `json:"fits"`
	Steps       int      `json:"steps"`  // 0: by epochs
	Epochs      int      `json:"epochs"` // 0: by steps
	FirstStep   Estimate `json:"first_step"`
}

// Turns is how many workers may compute at once on each device.
type Turns map[string]int

// Worker is one worker's place and what it is expected to take there.
type Worker struct {
	Name        runner.Worker    `json:"name"`
	Device      string           `json:"device"`
	MemoryBytes uint64           `json:"memory_bytes"`  // on the device
	HostBytes   uint64           `json:"process_bytes"` // of the process itself, on the host
	Memory      placement.Memory `json:"-"`
}

// Shapes are the sizes that are compiled.
type Shapes struct {
	Buckets     []int  `json:"buckets"`
	Anchors     int    `json:"anchors"`
	BlockSize   int    `json:"block_size"`
	Queries     int    `json:"queries"` // anchors x block size
	LayerIDs    []int  `json:"layer_ids"`
	RowsPerStep int    `json:"rows_per_step"`
	RowsPerRank int    `json:"rows_per_rank"`
	Parameters  uint64 `json:"parameters"` // of the drafter
	Vocabulary  int    `json:"vocabulary"`
}

// Arenas is the memory that rows are handed over in.
type Arenas struct {
	Count     int    `json:"count"`
	Slots     int    `json:"slots"` // of each
	SlotBytes uint64 `json:"slot_bytes"`
	Bytes     uint64 `json:"bytes"` // of all
	Kind      string `json:"kind"`
	Reason    string `json:"kind_reason,omitempty"` // why it is host memory although there are GPUs
}

// Make works out the plan. target is what the target's directory says, or
// Config.EmbeddedModel.
func Make(c *config.Config, target config.Model, m Machine) (Plan, error) {
	ids := c.CapturedLayers(target.Layers)
	longest := c.Training.Buckets[len(c.Training.Buckets)-1]
	_, slot, err := arena.Layout(uint32(longest), uint64(len(ids)*target.HiddenSize), storage(c.Target.DType))
	if err != nil {
		return Plan{}, err
	}
	w := work{config: c, target: sizeOf(target), drafter: drafterOf(c, target), captured: uint64(len(ids)), deepest: ids[len(ids)-1] + 1,
		rows: placement.Rows{Bucket: uint64(longest), Anchors: uint64(c.Training.Anchors), BlockSize: uint64(c.Drafter.BlockSize), Captured: uint64(len(ids)), SlotBytes: slot}}
	p := Plan{Name: c.Run.Name, Shapes: w.shapes(ids, target.VocabSize), Steps: c.Training.Steps, Epochs: c.Training.Epochs, Available: m.Available,
		Arenas:     Arenas{Count: c.Workers.Targets, Slots: c.Workers.Slots, SlotBytes: slot, Bytes: slot * uint64(c.Workers.Slots*c.Workers.Targets)},
		ImageBytes: placement.ImageBytes(w.drafter, w.captured)}
	if err := w.place(&p, m); err != nil {
		return p, err
	}
	onHost := uint64(c.Workers.Targets)
	if p.Arenas.Kind == runner.ArenaCUDA {
		onHost = 0 // arenas are counted with their targets
	}
	p.HostBytes = placement.HostBytes(onHost, uint64(c.Workers.Slots), slot, imagesKept, p.ImageBytes)
	p.MemoryBytes = p.HostBytes
	for _, x := range p.Workers {
		p.MemoryBytes += x.HostBytes
		if x.Device == placement.CPU {
			p.MemoryBytes += x.MemoryBytes
		}
	}
	p.Fits = m.Available == 0 || p.MemoryBytes <= m.Available
	p.FirstStep = w.estimate(m)
	return p, nil
}

// work is a configuration in sizes.
type work struct {
	config          *config.Config
	target, drafter placement.Model
	captured        uint64
	deepest         int // layers of the target that run
	rows            placement.Rows
}

func (w work) shapes(ids []int, vocabulary int) Shapes {
	t := w.config.Training
	return Shapes{Buckets: t.Buckets, Anchors: t.Anchors, BlockSize: w.config.Drafter.BlockSize, Queries: t.Anchors * w.config.Drafter.BlockSize,
		LayerIDs: ids, RowsPerStep: t.RowsPerStep, RowsPerRank: t.RowsPerStep / w.config.Workers.Drafters,
		Parameters: w.drafter.Trained(w.captured), Vocabulary: vocabulary}
}

// place puts workers on devices, with what they take there.
func (w work) place(p *Plan, m Machine) error {
	c := w.config
	of := map[runner.Role]placement.Memory{
		runner.Target:  placement.TargetMemory(w.target, w.rows, bytesOf(c.Target.DType)),
		runner.Drafter: placement.DrafterMemory(w.drafter, w.rows, bytesOf(c.Training.ComputeDType), c.Drafter.Attention == "sdpa"),
	}
	cuda := c.Workers.Device == "cuda"
	if cuda && c.Arenas.Kind != runner.ArenaMemfd {
		target := of[runner.Target]
		target.Arena = p.Arenas.SlotBytes * uint64(p.Arenas.Slots)
		of[runner.Target] = target
	}
	placed, err := placement.Place(placement.Wanted{Targets: c.Workers.Targets, Drafters: c.Workers.Drafters, CUDA: cuda, GPUs: m.GPUs,
		Colocate: c.Workers.Colocate, Turns: c.Workers.Turns, Threads: c.Workers.Threads, Cores: m.Cores,
		TargetBytes: of[runner.Target].Total(), DrafterBytes: of[runner.Drafter].Total()})
	if err != nil {
		return err
	}
	if p.Arenas.Kind, p.Arenas.Reason, err = placement.ArenaKind(c.Arenas.Kind, cuda, placed.Workers, m.Links); err != nil {
		return err
	}
	for _, x := range placed.Workers {
		mem := of[x.Worker.Role]
		if p.Arenas.Kind == runner.ArenaMemfd {
			mem.Arena = 0
		}
		p.Workers = append(p.Workers, Worker{x.Worker, x.Device, mem.Total(), processBytes, mem})
	}
	p.Turns = placed.Turns
	return nil
}

func sizeOf(m config.Model) placement.Model {
	return placement.Model{Layers: uint64(m.Layers), Hidden: uint64(m.HiddenSize), Intermediate: uint64(m.IntermediateSize),
		Heads: uint64(m.Heads), KVHeads: uint64(m.KVHeads), HeadDim: uint64(m.HeadDim), Vocab: uint64(m.VocabSize), Tied: m.Tied,
		Sparse: uint64(m.SparseLayers()), Experts: uint64(m.Experts), Active: uint64(m.ActiveExperts), ExpertIntermediate: uint64(m.ExpertSize)}
}

// drafterOf is the drafter's size: the target's where the configuration says
// nothing, but dense for every target.
func drafterOf(c *config.Config, target config.Model) placement.Model {
	d := sizeOf(target)
	d.Layers = uint64(c.Drafter.Layers)
	d.Sparse, d.Experts, d.Active, d.ExpertIntermediate = 0, 0, 0, 0
	for to, from := range map[*uint64]int{&d.Intermediate: c.Drafter.IntermediateSize, &d.Heads: c.Drafter.Heads, &d.KVHeads: c.Drafter.KVHeads, &d.HeadDim: c.Drafter.HeadDim} {
		if from > 0 {
			*to = uint64(from)
		}
	}
	return d
}

func storage(dtype string) string {
	if dtype == "bfloat16" {
		return "BF16"
	}
	return "F32"
}

func bytesOf(dtype string) uint64 {
	if dtype == "bfloat16" {
		return 2
	}
	return 4
}
