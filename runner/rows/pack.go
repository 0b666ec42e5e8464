package rows

import (
	"cmp"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// MaxPieces bounds the pieces of a row, so that an order that carries them
// stays below the lane's limit for one frame.
const MaxPieces = 1024

// packWindow is how many rows are open at a time. A sample goes into the first
// open row that it fits; when it fits none, a row is opened, and where
// packWindow are open already the oldest is closed first. A few dozen already
// fill rows to within a percent of what the best packing reaches, and a row is
// never far from the order that the scheduler chose.
const packWindow = 32

// draw is one choice of anchors for one sample of an epoch.
type draw struct {
	sample runner.Sample
	n      uint32
}

// openRow is a row that may still take samples.
type openRow struct {
	pieces []runner.Piece
	tokens uint32
}

// packer packs samples by first fit in a bounded window.
type packer struct {
	index    *Index
	buckets  []uint32 // rising
	anchors  uint32   // places of a row
	maxPiece int
}

// pack gives the rows that hold draws, in the order they were closed; row
// numbers and the epoch are the caller's. Every sample must fit the largest
// bucket.
func (p packer) pack(draws []draw) []runner.RowPlan {
	var open []openRow
	var out []runner.RowPlan
	for _, d := range draws {
		n := p.index.Samples[d.sample].Tokens
		i := slices.IndexFunc(open, func(r openRow) bool {
			return len(r.pieces) < p.maxPiece && n <= p.buckets[len(p.buckets)-1]-r.tokens
		})
		if i < 0 {
			if len(open) == packWindow {
				out = append(out, p.close(open[0]))
				open = open[1:]
			}
			open = append(open, openRow{})
			i = len(open) - 1
		}
		r := &open[i]
		r.pieces = append(r.pieces, runner.Piece{Sample: d.sample, Draw: d.n, Start: r.tokens, Tokens: n})
		r.tokens += n
	}
	for _, r := range open {
		out = append(out, p.close(r))
	}
	return out
}

// close picks the smallest bucket that holds the row and shares out its
// anchor places.
func (p packer) close(r openRow) runner.RowPlan {
	valid := make([]uint32, len(r.pieces))
	for i, piece := range r.pieces {
		valid[i] = p.index.Samples[piece.Sample].Anchors
	}
	for i, n := range shareAnchors(p.anchors, valid) {
		r.pieces[i].Anchors = n
	}
	i, _ := slices.BinarySearch(p.buckets, r.tokens)
	return runner.RowPlan{Bucket: p.buckets[i], Pieces: r.pieces}
}

// shareAnchors shares out places among pieces in proportion to their valid
// anchors, by the largest remainder: never more than a piece has, and at least
// one for each that has any, while places last (first pieces first). Where
// there are places for all valid anchors, each piece gets all of its own and
// the rest is padding.
func shareAnchors(places uint32, valid []uint32) []uint32 {
	share := make([]uint32, len(valid))
	total, left := uint64(0), uint64(places)
	for i, v := range valid {
		if v > 0 && left > 0 {
			share[i] = 1
			left--
			total += uint64(v - 1)
		}
	}
	if total == 0 || left == 0 {
		return share
	}
	left = min(left, total)
	type remainder struct {
		piece int
		size  uint64
	}
	rest, given := make([]remainder, 0, len(valid)), uint64(0)
	for i, v := range valid {
		if share[i] == 0 {
			continue
		}
		q := left * uint64(v-1) // below 2^64: both are u32
		share[i] += uint32(q / total)
		given += q / total
		rest = append(rest, remainder{i, q % total})
	}
	slices.SortStableFunc(rest, func(a, b remainder) int { return cmp.Compare(b.size, a.size) })
	for _, r := range rest[:left-given] {
		share[r.piece]++
	}
	return share
}
