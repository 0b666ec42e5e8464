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
}

// Rows is the size of what is trained.
type Rows struct {
	Bucket    uint64 // tokens of the longest row
	Anchors   uint64 // blocks of a row
	BlockSize uint64 // tokens of a block
	Captured  uint64 // layers of the target
	SlotBytes uint64
}

// Memory is an estimate of what one worker takes on its device, in bytes. The
// certificate's peak says what it was.
type Memory struct {
	Weights     uint64 // trained masters, compute copies, frozen parts
	Gradients   uint64
	Optimiser   uint64 // two float32 moments
	Activations uint64 // at their most, forward and backward
	RowBuffers  uint64
	Arena       uint64 // slots that lie on the device
}

// Total is the sum.
func (m Memory) Total() uint64 {
	return m.Weights + m.Gradients + m.Optimiser + m.Activations + m.RowBuffers + m.Arena
}

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

// TargetMemory estimates a target worker: the frozen model, one layer's
// activations over a row, and the captured layers. element is the bytes of one
// element of its dtype.
func TargetMemory(m Model, r Rows, element uint64) Memory {
	oneLayer := 4*m.Hidden + 2*m.Width() + m.HeadDim*(2*m.Heads+2*m.KVHeads)
	return Memory{
		Weights:     m.Parameters() * element,
		Activations: r.Bucket * (oneLayer + r.Captured*m.Hidden) * element,
	}
}

// DrafterMemory estimates a drafter worker. m is the drafter's model with the
// target's vocabulary; element is the bytes of the compute dtype; dense says
// that attention keeps its scores (sdpa with an explicit mask).
func DrafterMemory(m Model, r Rows, element uint64, dense bool) Memory {
	trained := m.Trained(r.Captured)
	weights := trained*4 + m.ends()*element
	if element < 4 {
		weights += trained * element // the compute copy beside the masters
	}
	queries := r.Anchors * r.BlockSize
	keys := r.Bucket + queries
	perLayer := queries*(8*m.Hidden+3*m.Intermediate+2*m.Heads*m.HeadDim)*element + keys*2*m.KVHeads*m.HeadDim*element
	if dense {
		perLayer += 2 * m.Heads * queries * keys * element // scores, and their gradient
	}
	logits := 2 * queries * m.Vocab * 4 // float32, and their gradient
	return Memory{
		Weights:     weights,
		Gradients:   trained * 4,
		Optimiser:   trained * 8,
		Activations: m.Layers*perLayer + logits,
		RowBuffers:  2 * r.SlotBytes,
	}
}

// ImageBytes estimates an image: masters and two moments in float32.
func ImageBytes(m Model, captured uint64) uint64 { return 12 * m.Trained(captured) }

// HostBytes is what the supervisor allocates on the host before it trains: the
// arenas of so many targets, and images kept in memory with one being written.
func HostBytes(targets, slots, slotBytes, images, imageBytes uint64) uint64 {
	return targets*slots*slotBytes + (images+1)*imageBytes
}
