package scheduler

import (
	"encoding/binary"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// fromColumns makes the candidates of columns. What it takes of memory follows
// from the bytes that came, not from the places that they are said to be.
func fromColumns(c *schedulerv1.Columns) ([]Candidate, error) {
	var all [5]column
	for i, raw := range [5][]byte{c.GetSample(), c.GetTokens(), c.GetSupervised(), c.GetAnchors(), c.GetSource()} {
		width, ok := widthOf(len(raw), int(c.GetPlaces()))
		if !ok {
			return nil, Errorf(runner.Invalid, "arrange: columns: %s: want 1, 2 or 4 bytes for each of %d places, got %d bytes",
				[5]string{"sample", "tokens", "supervised", "anchors", "source"}[i], c.GetPlaces(), len(raw))
		}
		all[i] = column{raw, width}
	}
	sample, tokens, supervised, anchors, source := all[0], all[1], all[2], all[3], all[4]
	out := make([]Candidate, c.GetPlaces())
	for i := range out {
		out[i] = Candidate{Sample: runner.Sample(sample.at(i)), Tokens: tokens.at(i), Supervised: supervised.at(i), Anchors: anchors.at(i), Source: int(source.at(i))}
	}
	return out, nil
}

// widthOf gives the bytes of one number of a column.
func widthOf(size, places int) (width int, ok bool) {
	for _, width := range [3]int{1, 2, 4} {
		if size == width*places {
			return width, true
		}
	}
	return 0, false
}

// column is one list of a pool: numbers of width bytes.
type column struct {
	raw   []byte
	width int
}

// at gives a place's number.
func (c column) at(i int) uint32 {
	switch c.width {
	case 1:
		return uint32(c.raw[i])
	case 2:
		return uint32(binary.LittleEndian.Uint16(c.raw[2*i:]))
	}
	return binary.LittleEndian.Uint32(c.raw[4*i:])
}

// arrangeReply packs an answer as its question was.
func arrangeReply(q *schedulerv1.ArrangeRequest, samples []runner.Sample) *schedulerv1.ArrangeReply {
	if q.GetColumns() != nil {
		raw := make([]byte, 0, 4*len(samples))
		for _, s := range samples {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(s))
		}
		return &schedulerv1.ArrangeReply{Packed: raw}
	}
	out := &schedulerv1.ArrangeReply{Samples: make([]uint32, len(samples))}
	for i, s := range samples {
		out.Samples[i] = uint32(s)
	}
	return out
}
