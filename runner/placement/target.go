package placement

// foldElements are the elements of a weight that warm-up digests at once
// (python/dflash_runner/fold.py, _CHUNK), and foldBytes what each takes of the
// device meanwhile: five numbers of 8 bytes.
const (
	foldElements = 1 << 24
	foldBytes    = 5 * 8
)

// TargetMemory estimates a target worker: the frozen model, what one row takes
// at its most, its arena, and what evaluation takes: drafter's weights and one
// chunk of logits. Where rows are replayed, their recordings keep what a row
// takes, as evaluation computes beside them, and hidden states of each length.
func TargetMemory(m, drafter Model, r Rows, u Use) Memory {
	recorded := uint64(0)
	if u.Replay {
		recorded = m.forward(r, u) + r.EachBytes
	}
	return Memory{
		Context:     u.context(),
		Weights:     m.Parameters() * u.Element,
		Activations: max(m.forward(r, u), min(foldElements, m.largest())*foldBytes),
		Recorded:    recorded,
		Workspace:   u.workspace(1),
		Slots:       u.Slots,
		Evaluation:  drafter.Trained(r.Captured)*u.Element + logits(r.Bucket, m.Vocab),
	}
}

// forward gives the bytes that a row takes besides the weights, at its most, in
// the last layer that runs or before the first. S tokens, e bytes of an
// element, H hidden, A query heads x head size, G key-value heads x head size,
// W the MLP's width, c captured layers; as transformers lets go of tensors
// (measured by counting every tensor that lives, python/bench/LOG.md):
//
//	all along   S e H (1 + c-1 + 1 where apart)   embedding, captured before, what the layer before put out
//	            S S masks + 2 S e head size       masks, one byte a pair; cosines and sines
//	and then the largest of
//	attention   S e (H + 2A + 2G)                 normed input, queries, output, keys and values
//	            + 2 S e A                         keys and values for every query head, where these are more
//	            + S S e                           on a GPU: the mask again, as what is added to scores
//	rotation    S e (H + A + 2G + most of 3A, A+3G)   the same before it, and what one rotation takes
//	MLP         S e (2H + 3W)                     residual, normed input; gate, up and their product
//	a norm      S (e H + 8H), S e (H + A) + 8 S A     residual, and two of it in float32; of queries likewise
//	the end     S e H (1 + c)                     the last captured, and all side by side
//
// Before the first layer: S e H and the masks, the last of them in three parts.
func (m Model) forward(r Rows, u Use) uint64 {
	s, e, pairs, masks := r.Bucket, u.Element, r.Bucket*r.Bucket, max(1, m.Masks)
	hidden, all, kv := m.Hidden, m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	held := s*e*hidden*r.Captured + masks*pairs + 2*s*e*m.HeadDim
	if r.Apart {
		held += s * e * hidden
	}
	attention := s * e * (hidden + 2*all + 2*kv)
	if m.Heads > m.KVHeads {
		attention += 2 * s * e * all
	}
	if u.CUDA {
		attention += pairs * e
	}
	mlp := s * e * (2*hidden + 3*m.Width())
	rotation := s * e * (hidden + all + 2*kv + max(3*all, all+3*kv))
	norm := s * max((e+8)*hidden, e*hidden+(e+8)*all)
	end := s * e * hidden * (1 + r.Captured)
	return max(s*e*hidden+(masks+2)*pairs, held+max(attention, rotation, mlp, norm, end))
}

// largest gives the elements of the largest weight.
func (m Model) largest() uint64 {
	attention, ends := m.Hidden*m.HeadDim*m.Heads, m.Vocab*m.Hidden
	experts := uint64(0)
	if m.Sparse > 0 { // gates and ups of all experts are one tensor
		experts = m.Experts * 2 * m.Hidden * m.ExpertIntermediate
	}
	return max(attention, ends, experts, m.Hidden*m.Intermediate)
}
