package host

import (
	"encoding/binary"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// columnsOf packs a pool, every list as narrow as its largest number allows.
func columnsOf(pool []scheduler.Candidate) *schedulerv1.Columns {
	var bits [5]uint32
	for i := range pool {
		c := &pool[i]
		bits[0] |= uint32(c.Sample)
		bits[1] |= c.Tokens
		bits[2] |= c.Supervised
		bits[3] |= c.Anchors
		bits[4] |= uint32(c.Source)
	}
	var all [5]column
	for i := range all {
		all[i].width = narrowest(bits[i])
	}
	room := make([]byte, len(pool)*(all[0].width+all[1].width+all[2].width+all[3].width+all[4].width))
	for i := range all {
		n := len(pool) * all[i].width
		all[i].raw, room = room[:n:n], room[n:]
	}
	sample, tokens, supervised, anchors, source := all[0], all[1], all[2], all[3], all[4]
	for i := range pool {
		c := &pool[i]
		sample.put(i, uint32(c.Sample))
		tokens.put(i, c.Tokens)
		supervised.put(i, c.Supervised)
		anchors.put(i, c.Anchors)
		source.put(i, uint32(c.Source))
	}
	return &schedulerv1.Columns{Places: uint32(len(pool)), Sample: sample.raw, Tokens: tokens.raw, Supervised: supervised.raw,
		Anchors: anchors.raw, Source: source.raw}
}

// narrowest gives how many bytes numbers take that have no other bits.
func narrowest(bits uint32) int {
	switch {
	case bits < 1<<8:
		return 1
	case bits < 1<<16:
		return 2
	}
	return 4
}

// column is one list of a pool: numbers of width bytes.
type column struct {
	raw   []byte
	width int
}

// put sets a place's number.
func (c column) put(i int, n uint32) {
	switch c.width {
	case 1:
		c.raw[i] = byte(n)
	case 2:
		binary.LittleEndian.PutUint16(c.raw[2*i:], uint16(n))
	default:
		binary.LittleEndian.PutUint32(c.raw[4*i:], n)
	}
}

// samplesOf takes a stranger's arrangement, in either of its forms.
func samplesOf(r *schedulerv1.ArrangeReply) ([]runner.Sample, error) {
	raw := r.GetPacked()
	switch {
	case len(raw) > 0 && len(r.GetSamples()) > 0:
		return nil, runner.Errorf(runner.Invalid, "want samples or packed ones, got %d and %d bytes", len(r.GetSamples()), len(raw))
	case len(raw)%4 != 0:
		return nil, runner.Errorf(runner.Invalid, "packed samples: want 4 bytes for each, got %d bytes", len(raw))
	case len(raw) > 0:
		out := make([]runner.Sample, len(raw)/4)
		for i := range out {
			out[i] = runner.Sample(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		return out, nil
	}
	out := make([]runner.Sample, len(r.GetSamples()))
	for i, s := range r.GetSamples() {
		out[i] = runner.Sample(s)
	}
	return out, nil
}
