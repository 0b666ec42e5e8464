package placement

// Bounds of one chunk of logits (python/dflash_runner/operations.py and kernels.py, score_bytes).
const (
	plainChunkBytes    = 256 << 20 // in float32; beside them live copies in the compute dtype and the softmax
	compiledChunkBytes = 1 << 30   // in the compute dtype; beside them lives their gradient
)

// logits gives the memory of one chunk of logits of so many slots, computed by
// plain operations: two and a half times its float32 size.
func logits(slots, vocab uint64) uint64 { return min(plainChunkBytes, slots*vocab*4) * 5 / 2 }

// plainActivations is what autograd keeps of one row in eager layers around the
// attention, in bytes; H hidden, A query heads x head size, G key-value heads x
// head size, I intermediate, Q queries, S context tokens, R predicted slots, e
// the bytes of an element. A norm keeps its input (below float32: a float32 copy
// and the normed value), so norm(w) = ew, or (4+e)w below float32:
//
//	a layer    Q (2 norm(H) + 2eH + norm(A) + 2eA + norm(G) + 4eI)  norms, query, output, gated MLP
//	           + 2eG (S+Q) + S norm(G)                              keys and values, joined
//	           + 2 heads Q (S+Q) e                                  scores and their gradient
//	once       S (norm(H) + eH) + Q (eH + norm(H) + eH) + 2eRH      context, noise, last norm, head's gradient
//	at its top the larger of one chunk of logits and one MLP's backward, Q (3eI + 8H)
func plainActivations(m Model, r Rows, u Use) uint64 {
	e, queries := u.Element, r.Anchors*r.BlockSize
	keys, slots := r.Bucket+queries, r.Anchors*(r.BlockSize-1)
	hidden, all, kv := m.Hidden, m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	norm := func(width uint64) uint64 {
		if e < 4 {
			return (4 + e) * width
		}
		return e * width
	}
	layer := queries*(2*norm(hidden)+2*e*hidden+norm(all)+2*e*all+norm(kv)+4*e*m.Intermediate) + 2*e*kv*keys + r.Bucket*norm(kv)
	layer += 2 * m.Heads * queries * keys * e
	once := r.Bucket*(norm(hidden)+e*hidden) + queries*(2*e*hidden+norm(hidden)) + 2*e*slots*hidden
	return m.Layers*layer + once + max(logits(slots, m.Vocab), queries*(3*e*m.Intermediate+8*hidden))
}

// compiledActivations is the same where operations and attention are compiled,
// which keeps what goes into them and nothing between:
//
//	a layer    e Q (4H + 4A + G + 3I)   two sums and their norms; queries before and after their turn,
//	                                    the output and its copy by token; keys; gate, up and their product
//	           + e (2G (S+Q) + S G)     keys and values, joined, with A for G where heads have their own; keys of the context
//	           + 4 heads Q              the softmax's sums
//	once       e (2 S H + 2 Q H + 2 R H)  the context before and after its norm, noise, last norm, its slots
//	                                    and their gradient
//	at its top the larger of one chunk of logits with its gradient and one MLP's backward, e Q (3I + 2H)
func compiledActivations(m Model, r Rows, u Use) uint64 {
	e, joined := u.Element, m.KVHeads*m.HeadDim
	if u.CopyKeys {
		joined = m.Heads * m.HeadDim
	}
	queries, slots := r.Anchors*r.BlockSize, r.Anchors*(r.BlockSize-1)
	hidden, all, kv := m.Hidden, m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	layer := e*(queries*(4*hidden+4*all+kv+3*m.Intermediate)+2*joined*(r.Bucket+queries)+r.Bucket*kv) + 4*m.Heads*queries
	once := 2 * e * hidden * (r.Bucket + queries + slots)
	chunk := 2 * e * m.Vocab * chunkRows(slots, compiledChunkBytes/(e*m.Vocab))
	return m.Layers*layer + once + max(chunk, e*queries*(3*m.Intermediate+2*hidden))
}

// eights gives the memory of weights in eight bits: those of the layers and the
// head, each with its transpose; the head has as many rows as a multiple of 16.
func eights(m Model) uint64 {
	linear := m.Hidden*m.HeadDim*(2*m.Heads+2*m.KVHeads) + 3*m.Hidden*m.Intermediate
	return 2 * (m.Layers*linear + (m.Vocab+15)/16*16*m.Hidden)
}

// eightActivations is what products in eight bits add to activations at most: an
// input and a gradient of the widest layer, each with its transpose, as they
// live in one backward. That what is kept for the backward is halved in eight
// bits is left out: nothing of it has been measured.
func eightActivations(m Model, r Rows) uint64 {
	return 4 * max(r.Anchors*r.BlockSize, r.Bucket) * max(m.Hidden, m.Intermediate, m.Heads*m.HeadDim)
}

// chunkRows is how many slots a chunk has (python/dflash_runner/loss.py,
// chunk_rows): the most that divides them, unless that is less than half of what
// is allowed.
func chunkRows(slots, most uint64) uint64 {
	most = max(1, min(most, slots))
	for rows := most; 2*rows >= most; rows-- {
		if slots%rows == 0 {
			return rows
		}
	}
	return most
}
