package rows

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestShareAnchors(t *testing.T) {
	for _, c := range []struct {
		places uint32
		valid  []uint32
		want   []uint32
	}{
		{8, []uint32{3, 2}, []uint32{3, 2}},             // places for all: the rest is padding
		{8, []uint32{100, 100}, []uint32{4, 4}},         // equal parts
		{8, []uint32{300, 100}, []uint32{6, 2}},         // in proportion
		{4, []uint32{1000, 1, 1}, []uint32{2, 1, 1}},    // at least one each
		{7, []uint32{10, 10, 10}, []uint32{3, 2, 2}},    // equal remainders: the first
		{5, []uint32{10, 30}, []uint32{2, 3}},           // 1+0.69, 1+2.31
		{3, []uint32{0, 5, 0}, []uint32{0, 3, 0}},       // nothing for those without
		{2, []uint32{1, 9, 9}, []uint32{1, 1, 0}},       // places run out
		{0, []uint32{4}, []uint32{0}},                   // no places at all
		{1 << 31, []uint32{1 << 31}, []uint32{1 << 31}}, // no overflow
		{1<<32 - 1, []uint32{1<<32 - 1, 1<<32 - 1}, []uint32{1 << 31, 1<<31 - 1}},
		{6, nil, []uint32{}},
	} {
		if got := shareAnchors(c.places, c.valid); !slices.Equal(got, c.want) {
			t.Errorf("shareAnchors(%d, %d): got %d, want %d", c.places, c.valid, got, c.want)
		}
	}
}

func TestShareAnchorsLimits(t *testing.T) {
	g := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		valid := make([]uint32, g.IntN(9))
		total, some := uint32(0), uint32(0)
		for i := range valid {
			valid[i] = uint32(g.IntN(12))
			total += valid[i]
			some += min(valid[i], 1)
		}
		places := uint32(g.IntN(24))
		sum := uint32(0)
		for i, n := range shareAnchors(places, valid) {
			if n > valid[i] || valid[i] > 0 && n == 0 && places >= some {
				t.Fatalf("%d places, valid %d: piece %d got %d", places, valid, i, n)
			}
			sum += n
		}
		if sum != min(places, total) {
			t.Fatalf("%d places, valid %d: shared out %d", places, valid, sum)
		}
	}
}

func TestPack(t *testing.T) {
	ix := &Index{Samples: []SampleInfo{{Tokens: 6, Anchors: 5}, {Tokens: 4, Anchors: 3}, {Tokens: 3, Anchors: 1}, {Tokens: 10, Anchors: 9}, {Tokens: 1, Anchors: 0}}}
	p := packer{ix, []uint32{4, 10}, 4, 4}
	got := p.pack([]draw{{0, 0}, {2, 0}, {1, 0}, {3, 1}, {2, 1}})
	want := []runner.RowPlan{
		{Bucket: 10, Pieces: []runner.Piece{{Sample: 0, Tokens: 6, Anchors: 3}, {Sample: 2, Start: 6, Tokens: 3, Anchors: 1}}}, // 1 would make 13
		{Bucket: 10, Pieces: []runner.Piece{{Sample: 1, Tokens: 4, Anchors: 3}, {Sample: 2, Draw: 1, Start: 4, Tokens: 3, Anchors: 1}}},
		{Bucket: 10, Pieces: []runner.Piece{{Sample: 3, Draw: 1, Tokens: 10, Anchors: 4}}},
	}
	if !slices.EqualFunc(got, want, func(a, b runner.RowPlan) bool {
		return a.Bucket == b.Bucket && slices.Equal(a.Pieces, b.Pieces)
	}) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if small := p.pack([]draw{{2, 0}}); small[0].Bucket != 4 { // smallest bucket that holds it
		t.Errorf("got bucket %d, want 4", small[0].Bucket)
	}
}

func TestPackWindow(t *testing.T) {
	ix := &Index{Samples: []SampleInfo{{Tokens: 6, Anchors: 1}, {Tokens: 4, Anchors: 1}}}
	p := packer{ix, []uint32{10}, 4, 4}
	draws := make([]draw, packWindow+1) // all of sample 0: one row more than are open at a time
	got := p.pack(append(draws, draw{1, 0}))
	if len(got) != packWindow+1 || len(got[0].Pieces) != 1 || len(got[1].Pieces) != 2 {
		t.Errorf("want the first row closed alone and the second filled up, got %v", got)
	}
}

func TestPackPieces(t *testing.T) {
	ix := &Index{Samples: []SampleInfo{{Tokens: 2, Anchors: 1}}}
	for _, r := range (packer{ix, []uint32{100}, 3, 3}).pack(make([]draw, 7)) {
		for _, piece := range r.Pieces {
			if piece.Anchors != 1 {
				t.Errorf("a sample with a valid anchor got %d places in %v", piece.Anchors, r)
			}
		}
	}
}
