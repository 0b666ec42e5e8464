// Package plan works out what a configuration will take on a machine, before
// anything is started: placement, memory, shapes, and when the first step will
// be done. It is pure: the machine is given to it.
package plan

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// imagesKept is how many images are in memory at once, besides one being written.
const imagesKept = 2

// ImagesAtOnce is how many a run has room for, the one that is written or made
// ahead among them.
const ImagesAtOnce = imagesKept + 1

// What one worker takes of the host before it has a model: Python, torch and
// transformers, measured on a CPU and rounded up; on a GPU CUDA's libraries and
// its pinned buffers come with it, which is assumed.
const (
	processBytes    = 640 << 20
	gpuProcessBytes = 2 << 30
)

// Machine is what there is.
type Machine struct {
	Cores     int
	Available uint64 // bytes of memory that may still be taken; 0: not known
	GPUs      []placement.GPU
	Links     placement.Links // between them
}

// Plan is `plan --json`.
type Plan struct {
	Name         string   `json:"name"`
	Device       string   `json:"device"`           // cpu or cuda
	Attention    string   `json:"attention"`        // of training
	RowAttention string   `json:"target_attention"` // that targets make rows by
	Precision    string   `json:"precision"`        // of the drafter's matrix products
	Workers      []Worker `json:"workers"`
	Devices      []Device `json:"devices"` // GPUs that are used
	Turns        Turns    `json:"turns"`
	Shapes       Shapes   `json:"shapes"`
	Arenas       Arenas   `json:"arenas"`
	ImageBytes   uint64   `json:"image_bytes"`
	HostBytes    uint64   `json:"host_bytes"`      // arenas and images
	MemoryBytes  uint64   `json:"memory_bytes"`    // host memory in all, workers included
	Available    uint64   `json:"available_bytes"` // 0: not known
	Fits         bool     `json:"fits"`
	Steps        int      `json:"steps"`  // 0: by epochs
	Epochs       int      `json:"epochs"` // 0: by steps
	FirstStep    Estimate `json:"first_step"`
	Notes        []string `json:"notes"`            // what is not as one might expect
	Chosen       *Settled `json:"chosen,omitempty"` // how counts of auto were settled
	Scheduler    string   `json:"scheduler"`        // who decides: balanced, fixed or a plugin's name
}

// Turns is how many workers may compute at once on each device.
type Turns map[string]int

// Worker is one worker's place and what it is expected to take there.
type Worker struct {
	Name           runner.Worker    `json:"name"`
	Device         string           `json:"device"`          // cpu, or the GPU's UUID
	MemoryBytes    uint64           `json:"memory_bytes"`    // on the device
	AllocatedBytes uint64           `json:"allocated_bytes"` // of them, what its certificate's peak_bytes is compared with
	HostBytes      uint64           `json:"process_bytes"`   // of the process itself, on the host
	Memory         placement.Memory `json:"memory"`          // memory_bytes, part by part
}

// Device is one GPU and what its workers take together.
type Device struct {
	UUID      string `json:"uuid"`
	Index     int    `json:"index"`
	Name      string `json:"name"`
	Wanted    uint64 `json:"wanted_bytes"`
	Available uint64 `json:"available_bytes"`
}

// Shapes are the sizes that are compiled.
type Shapes struct {
	Buckets     []int  `json:"buckets"`
	Anchors     int    `json:"anchors"`
	DrawsPerRow int    `json:"draws_per_row"`
	BlockSize   int    `json:"block_size"`
	Queries     int    `json:"queries"` // anchors x block size
	LayerIDs    []int  `json:"layer_ids"`
	RowsPerStep int    `json:"rows_per_step"`
	RowsPerRank int    `json:"rows_per_rank"`
	Parameters  uint64 `json:"parameters"` // of the drafter
	Vocabulary  int    `json:"vocabulary"`
}

// Arenas is the memory that rows are handed over in: memfd on the host, or
// cuda_vmm on the target's GPU.
type Arenas struct {
	Kind      string `json:"kind"`
	Count     int    `json:"count"`
	Slots     int    `json:"slots"` // of each
	SlotBytes uint64 `json:"slot_bytes"`
	Bytes     uint64 `json:"bytes"`                 // of all
	Reason    string `json:"kind_reason,omitempty"` // why it is host memory although there are GPUs
}

// Make works out the plan. target is what the target's directory says, or
// Config.EmbeddedModel.
func Make(c *config.Config, target config.Model, m Machine) (Plan, error) {
	if c.Workers.Targets == config.Auto || c.Workers.Drafters == config.Auto {
		return Plan{}, runner.Errorf(runner.Internal, "plan %s: want counts of workers that are settled, got auto", c.Run.Name)
	}
	w, err := workOf(c, target)
	if err != nil {
		return Plan{}, err
	}
	ids := w.ids
	p := Plan{Name: c.Run.Name, Scheduler: c.Scheduler.Use, Device: c.Workers.Device, Attention: c.Drafter.Attention, RowAttention: c.Target.Attention, Precision: c.Drafter.Precision, Shapes: w.shapes(ids, target.VocabSize), Steps: c.Training.Steps, Epochs: c.Training.Epochs, Available: m.Available,
		Arenas: w.arenas(), ImageBytes: placement.ImageBytes(w.drafter, w.captured), Devices: []Device{}, Notes: []string{}}
	if err := w.place(&p, m); err != nil {
		return p, err
	}
	onHost := p.Arenas.Bytes
	if p.Arenas.Kind == runner.ArenaCUDA {
		onHost = 0 // arenas are counted with their targets
	}
	p.HostBytes = placement.HostBytes(onHost, imagesKept, p.ImageBytes)
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

// workOf puts a configuration into sizes.
func workOf(c *config.Config, target config.Model) (work, error) {
	ids := c.CapturedLayers(target.Layers)
	longest, slot, each := 0, uint64(0), uint64(0)
	for _, longest = range c.Training.Buckets { // rising
		var err error
		if _, slot, err = arena.Layout(uint32(longest), uint64(len(ids)*target.HiddenSize), storage(c.Target.DType)); err != nil {
			return work{}, err
		}
		each += slot
	}
	return work{config: c, cuda: c.Workers.Device == "cuda", target: sizeOf(target), drafter: drafterOf(c, target), ids: ids, captured: uint64(len(ids)), deepest: ids[len(ids)-1] + 1,
		rows: placement.Rows{Bucket: uint64(longest), Anchors: uint64(c.Training.Anchors), BlockSize: uint64(c.Drafter.BlockSize), Captured: uint64(len(ids)), Apart: apart(ids), SlotBytes: slot, EachBytes: each}}, nil
}

// work is a configuration in sizes.
type work struct {
	ids             []int // captured layers
	config          *config.Config
	cuda            bool
	target, drafter placement.Model
	captured        uint64
	deepest         int // layers of the target that run
	rows            placement.Rows
}

func (w work) shapes(ids []int, vocabulary int) Shapes {
	t := w.config.Training
	return Shapes{Buckets: t.Buckets, Anchors: t.Anchors, DrawsPerRow: t.DrawsPerRow, BlockSize: w.config.Drafter.BlockSize, Queries: t.Anchors * w.config.Drafter.BlockSize,
		LayerIDs: ids, RowsPerStep: t.RowsPerStep, RowsPerRank: t.RowsPerStep / int(w.config.Workers.Drafters),
		Parameters: w.drafter.Trained(w.captured), Vocabulary: vocabulary}
}

// arenas is one for each target. As long as it is not known where workers run,
// it is reckoned on the target's GPU where the configuration allows that, in
// whole pieces of what a GPU gives out.
func (w work) arenas() Arenas {
	n, slots, slot := int(w.config.Workers.Targets), w.config.Workers.Slots, w.rows.SlotBytes
	each, kind := uint64(slots)*slot, runner.ArenaMemfd
	if w.cuda && w.config.Arenas.Kind != runner.ArenaMemfd {
		each, kind = placement.OnDevice(each), runner.ArenaCUDA
	}
	return Arenas{Kind: kind, Count: n, Slots: slots, SlotBytes: slot, Bytes: each * uint64(n)}
}

// Where names a worker's device for people: cpu, or GPU and its index.
func (p Plan) Where(device string) string {
	for _, d := range p.Devices {
		if d.UUID == device {
			return fmt.Sprintf("GPU %d", d.Index)
		}
	}
	return device
}

func sizeOf(m config.Model) placement.Model {
	return placement.Model{Layers: uint64(m.Layers), Hidden: uint64(m.HiddenSize), Intermediate: uint64(m.IntermediateSize),
		Heads: uint64(m.Heads), KVHeads: uint64(m.KVHeads), HeadDim: uint64(m.HeadDim), Vocab: uint64(m.VocabSize), Tied: m.Tied,
		Sparse: uint64(m.SparseLayers()), Experts: uint64(m.Experts), Active: uint64(m.ActiveExperts), ExpertIntermediate: uint64(m.ExpertSize), Masks: masksOf(m), Window: uint64(max(0, m.Window))}
}

// masksOf gives how many masks a row of the model needs: one for each kind of layer.
func masksOf(m config.Model) uint64 {
	kinds := map[string]bool{}
	for _, kind := range m.LayerTypes {
		kinds[kind] = true
	}
	return uint64(max(1, len(kinds)))
}

// apart says whether what goes into the last captured layer is kept for that alone.
func apart(ids []int) bool {
	last := ids[len(ids)-1]
	return last > 0 && (len(ids) == 1 || ids[len(ids)-2] != last-1)
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
