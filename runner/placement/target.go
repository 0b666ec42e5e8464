package placement

// foldElements are the elements of a weight that warm-up digests at once
// (python/dflash_runner/fold.py, _CHUNK), and foldBytes what each takes of the
// device meanwhile: five numbers of 8 bytes.
const (
	foldElements = 1 << 24
	foldBytes    = 5 * 8
)

// tileSize is of a mask's tiles, in tokens, and comparedTokens is the most of
// a row that warm-up compares, without a window.
const (
	tileSize       = 128
	comparedTokens = 5 + 7 + 400 + 150 + 3 + tileSize - 1
)

// TargetMemory estimates a target worker: the frozen model, what one row takes
// at its most, its arena, and what evaluation takes: drafter's weights and one
// chunk of logits. Where rows are replayed, their recordings keep what a row
// takes, as evaluation computes beside them, and hidden states of each length.
func TargetMemory(m, drafter Model, r Rows, u Use) Memory {
	row := m.forward(r, u)
	most := row
	if u.Tiles {
		row = m.tiled(r, u)
		most = max(row, m.compared(r, u))
	}
	recorded := uint64(0)
	if u.Replay {
		recorded = row + r.EachBytes
	}
	return Memory{
		Context:     u.context(),
		Weights:     m.Parameters() * u.Element,
		Activations: max(most, min(foldElements, m.largest())*foldBytes),
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
	held := m.held(r, u) + masks*pairs
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

// held gives what lives all along a row, without masks.
func (m Model) held(r Rows, u Use) uint64 {
	s, e := r.Bucket, u.Element
	held := s*e*m.Hidden*r.Captured + 2*s*e*m.HeadDim
	if r.Apart {
		held += s * e * m.Hidden
	}
	return held
}

// tiled is forward where attention, norms and rotation are compiled: none holds
// more than what it is given and gives. Nothing is kept of a pair of tokens,
// only of tiles: two lists of tiles in 4 bytes, for each kind of layer, and
// where each token's keys begin.
//
//	attention   S (e (H + 2A + 2G) + 8 heads)   normed input, queries, output, keys and values; two sums of a row of scores
//	rotation    S e (H + 2A + 3G)               queries and keys before it and after
//	MLP, the end                                as in forward
func (m Model) tiled(r Rows, u Use) uint64 {
	s, e, tiles, masks := r.Bucket, u.Element, (r.Bucket+tileSize-1)/tileSize, max(1, m.Masks)
	hidden, all, kv := m.Hidden, m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	lists := masks * (2*4*tiles*(tiles+1) + 4*s)
	attention := s * (e*(hidden+2*all+2*kv) + 8*m.Heads)
	rotation := s * e * (hidden + 2*all + 3*kv)
	mlp := s * e * (2*hidden + 3*m.Width())
	end := s * e * hidden * (1 + r.Captured)
	return m.held(r, u) + lists + max(attention, rotation, mlp, end)
}

// compared gives what warm-up takes besides, where rows are compiled: a row is
// made by the model's own attention as well, of documents of some hundred
// tokens and of one that a window cuts (python/dflash_runner/warmup_target.py,
// _lengths), which is no longer than a row.
func (m Model) compared(r Rows, u Use) uint64 {
	r.Bucket = comparedTokens + min(2*m.Window, r.Bucket)
	return m.forward(r, u)
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
