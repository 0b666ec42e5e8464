package placement

// Model is the size of a transformer of the Qwen3 kind, in elements. A sparse
// layer has a router and experts in place of one MLP.
type Model struct {
	Layers, Hidden, Intermediate uint64
	Heads, KVHeads, HeadDim      uint64
	Vocab                        uint64
	Tied                         bool // the head is the embedding

	Sparse             uint64 // layers with experts; 0: none
	Experts, Active    uint64 // of such a layer, and those that one token takes
	ExpertIntermediate uint64 // of one expert

	Masks  uint64 // kinds of attention layers, full and sliding, each with a mask of its own; 0 is 1
	Window uint64 // tokens that a sliding layer sees, or would; 0: not known
}

// Rows is the size of what is trained.
type Rows struct {
	Bucket    uint64 // tokens of the longest row
	Anchors   uint64 // blocks of a row
	BlockSize uint64 // tokens of a block
	Captured  uint64 // layers of the target
	Apart     bool   // the layer before the last captured one is not captured, and not the embedding
	SlotBytes uint64 // of the longest
	EachBytes uint64 // of a row of every length
}

// Use says how a worker computes.
type Use struct {
	Element  uint64 // bytes of one element of its compute dtype
	Dense    bool   // attention keeps its scores (sdpa with an explicit mask); else it is compiled
	Tiles    bool   // a target's rows are made by compiled attention and norms; else under masks of every pair
	CUDA     bool
	Replay   bool   // micro-steps, or a target's rows, are recorded and replayed
	Peers    bool   // others sum gradients with it, in backwards that are not replayed
	CopyKeys bool   // each query head has keys and values of its own in compiled attention
	Slots    uint64 // bytes of its arena, where that lies on its device
	FP8      bool   // products of layers and head are in eight bits
}

// Memory is an estimate of what one worker takes on its device, in bytes. What
// torch's allocator holds at most (Allocated) is what the certificate's peak
// says afterwards.
type Memory struct {
	Context     uint64 `json:"context_bytes"`     // of CUDA itself; 0 on a CPU
	Weights     uint64 `json:"weights_bytes"`     // trained masters, compute copies, frozen parts
	Gradients   uint64 `json:"gradients_bytes"`   // float32
	Optimiser   uint64 `json:"optimiser_bytes"`   // two float32 moments
	Activations uint64 `json:"activations_bytes"` // at their most, forward and backward
	Saved       uint64 `json:"saved_bytes"`       // masters as warm-up restores them
	RowBuffers  uint64 `json:"row_buffers_bytes"` // two rows
	Recorded    uint64 `json:"recorded_bytes"`    // what recordings read and leave, and their activations where others live beside
	Workspace   uint64 `json:"workspace_bytes"`   // of cuBLAS, which torch allocates; 0 on a CPU
	Slots       uint64 `json:"slots_bytes"`       // the arena, on a GPU
	Evaluation  uint64 `json:"evaluation_bytes"`  // a drafter to decode with, in targets
}

// Total is the sum.
func (m Memory) Total() uint64 { return m.Context + m.Allocated() + m.Slots + m.Evaluation }

// Allocated is what training alone takes of torch's allocator.
func (m Memory) Allocated() uint64 {
	return m.Weights + m.Gradients + m.Optimiser + m.Activations + m.Saved + m.RowBuffers + m.Recorded + m.Workspace
}

// What the formulas assume besides sizes.
const (
	// contextBytes is a CUDA context with torch's kernels and libraries in it.
	contextBytes = 768 << 20
	// workspaceBytes is what torch gives a cuBLAS handle to work in: one for every thread that multiplies.
	// 4,096 x 8 KiB on Hopper and newer (torch, CUDABlas: getChosenWorkspaceSize), 8 MiB before.
	workspaceBytes = 32 << 20
	// granularity of an arena on a GPU (cuMemGetAllocationGranularity).
	granularity = 2 << 20
)

func (u Use) context() uint64 {
	if u.CUDA {
		return contextBytes
	}
	return 0
}

// workspace gives what so many threads that multiply work in.
func (u Use) workspace(threads uint64) uint64 {
	if u.CUDA {
		return threads * workspaceBytes
	}
	return 0
}

// OnDevice rounds an arena up to what a GPU gives out.
func OnDevice(bytes uint64) uint64 { return (bytes + granularity - 1) / granularity * granularity }

// layers gives the elements of all layers: attention, MLP or router and
// experts, two norms and those of queries and keys.
func (m Model) layers() uint64 {
	attention := m.Hidden * m.HeadDim * (2*m.Heads + 2*m.KVHeads)
	dense := 3 * m.Hidden * m.Intermediate
	sparse := m.Experts * (3*m.Hidden*m.ExpertIntermediate + m.Hidden)
	return m.Layers*(attention+2*m.Hidden+2*m.HeadDim) + (m.Layers-m.Sparse)*dense + m.Sparse*sparse
}

// Width gives the MLP elements that one token goes through in a layer, the
// widest there is: the MLP's own, or those of its experts together.
func (m Model) Width() uint64 {
	if m.Sparse == 0 {
		return m.Intermediate
	}
	experts := m.Active * m.ExpertIntermediate
	if m.Sparse == m.Layers {
		return experts
	}
	return max(m.Intermediate, experts)
}

// ends gives the elements of the embedding and the head.
func (m Model) ends() uint64 {
	if m.Tied {
		return m.Vocab * m.Hidden
	}
	return 2 * m.Vocab * m.Hidden
}

// Parameters of the whole model: layers, final norm, embedding and head.
func (m Model) Parameters() uint64 { return m.layers() + m.Hidden + m.ends() }

// Trained gives the drafter's own parameters: layers, final norm, the
// projection of the captured layers and the norm after it (DFlash (arXiv 2602.06036) section 4).
// Embedding and head are the target's, and frozen.
func (m Model) Trained(captured uint64) uint64 {
	return m.layers() + m.Hidden + captured*m.Hidden*m.Hidden + m.Hidden
}

// DrafterMemory estimates a drafter worker. m is the drafter's model with the
// target's vocabulary.
//
// Weights: float32 masters (4 bytes a parameter), a compute copy below float32
// (2), embedding and head in the compute dtype; gradients 4, moments 8; warm-up
// keeps the masters as they were, 4.
func DrafterMemory(m Model, r Rows, u Use) Memory {
	trained := m.Trained(r.Captured)
	weights := trained*4 + m.ends()*u.Element
	if u.Element < 4 {
		weights += trained * u.Element
	}
	kept := compiledActivations(m, r, u)
	if u.Dense {
		kept = plainActivations(m, r, u)
	}
	if u.FP8 {
		weights += eights(m)
		kept += eightActivations(m, r)
	}
	return Memory{
		Context:     u.context(),
		Weights:     weights,
		Gradients:   trained * 4,
		Optimiser:   trained * 8,
		Activations: kept,
		Saved:       trained * 4,
		RowBuffers:  2 * r.SlotBytes,
		Recorded:    recorded(r, u, kept),
		Workspace:   u.workspace(2), // forward, and the thread of autograd
	}
}

// recorded is what recordings take for good: a row of each length, and the
// activations of one (the pool of all recordings), which a drafter that is alone has in their place
// and one with peers beside those of its last micro-step.
func recorded(r Rows, u Use, activations uint64) uint64 {
	switch {
	case !u.Replay:
		return 0
	case u.Peers:
		return r.EachBytes + activations
	default:
		return r.EachBytes
	}
}

// ImageBytes estimates an image: masters and two moments in float32.
func ImageBytes(m Model, captured uint64) uint64 { return 12 * m.Trained(captured) }

// HostBytes is what the supervisor allocates on the host before it trains: the
// arenas that lie there, and images kept in memory with one being written.
func HostBytes(arenas, images, imageBytes uint64) uint64 { return arenas + (images+1)*imageBytes }
