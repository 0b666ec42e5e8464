package bench

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// What the rows of a step are made of.
const (
	DocumentsFixed = "fixed" // one document that fills the row, all of it supervised
	DocumentsMixed = "mixed" // of many lengths, packed, each a prompt and a response
)

// CheckDocuments refuses other names.
func CheckDocuments(documents string) error {
	if documents != DocumentsFixed && documents != DocumentsMixed {
		return runner.Errorf(runner.Invalid, "choose documents: --documents: want %s or %s, got %q", DocumentsFixed, DocumentsMixed, documents)
	}
	return nil
}

// A pool of mixed documents: enough that packing it leaves as little room as
// packing a horizon of a run does. A few of its rows are measured.
const (
	poolDocuments   = 512
	mixedRows       = 8
	leastDocument   = 256 // tokens, of rows that are four times as long at least
	supervisedShare = 0.6 // of a document's tokens: the response, at its end
)

// document is tokens and, of these, the supervised ones at its end.
type document [2]uint32

// piece is a document's place in a row: sample, draw, start, tokens, anchors, as
// proto/lane.md has it.
type piece [5]uint32

// mixed are rows of documents of many lengths, as a run packs them.
type mixed struct {
	Documents []document `json:"documents"` // the pool
	Rows      [][]piece  `json:"rows"`
}

// mixedOf packs a pool for a shape's rows with the product's own packer, and
// takes rows at equal distances from all that come out, the last and emptiest
// ones in their proportion.
func mixedOf(shape Shape) (*mixed, error) {
	m, ix := &mixed{Documents: pool(shape.Tokens)}, &rows.Index{}
	for _, d := range m.Documents {
		ix.Samples = append(ix.Samples, rows.SampleInfo{Tokens: d[0], Supervised: d[1], Anchors: d[1] - 1})
	}
	packed, err := pack(ix, shape)
	if err != nil {
		return nil, err
	}
	for i := range mixedRows {
		var row []piece
		for _, p := range packed[i*len(packed)/mixedRows].Pieces {
			row = append(row, piece{uint32(p.Sample), p.Draw, p.Start, p.Tokens, p.Anchors})
		}
		m.Rows = append(m.Rows, row)
	}
	return m, nil
}

// pool draws documents whose lengths are log-uniform up to a row's: as many
// between 256 and 512 tokens as between 1,024 and 2,048.
func pool(tokens int) []document {
	g, least := rand.New(rand.NewPCG(1, 0)), min(leastDocument, max(4, tokens/4))
	out := make([]document, poolDocuments)
	for i := range out {
		n := math.Round(float64(least) * math.Pow(float64(tokens)/float64(least), g.Float64()))
		out[i] = document{uint32(n), uint32(math.Round(supervisedShare * n))}
	}
	return out
}

// pack gives the rows of one horizon that holds all samples in their order.
func pack(ix *rows.Index, shape Shape) (out []runner.RowPlan, err error) {
	p, err := rows.NewPlanner(ix, rows.Config{Buckets: []uint32{uint32(shape.Tokens)}, Anchors: uint32(shape.Anchors), RowsPerStep: 1, Drafters: 1, Draws: 1})
	if err != nil {
		return nil, err
	}
	if err := p.Feed(1, p.Plannable()); err != nil {
		return nil, err
	}
	for s, ok := p.Next(); ok; s, ok = p.Next() {
		out = append(out, s.Rows...)
	}
	if len(out) < mixedRows {
		return nil, runner.Errorf(runner.Internal, "pack documents: want at least %d rows, got %d", mixedRows, len(out))
	}
	return out, nil
}

// held is what the rows hold together.
type held struct{ tokens, supervised, anchors int }

func (m *mixed) held() (h held) {
	for _, row := range m.Rows {
		for _, p := range row {
			h.tokens, h.supervised, h.anchors = h.tokens+int(p[3]), h.supervised+int(m.Documents[p[0]][1]), h.anchors+int(p[4])
		}
	}
	return h
}

// mixed adds what rows of many lengths came to, beside the row of one document
// that the same process measured before. Blocks and tokens are those that are
// trained on: places without an anchor and padding count nothing.
func (r *Report) mixed(m *mixed, s steps, shape Shape, cuda bool) error {
	if s.Mixed == nil || s.Mixed.StepMS <= 0 {
		return runner.Errorf(runner.Internal, "read result of step.py: want the time of mixed rows above 0, got %+v", s.Mixed)
	}
	h, each := m.held(), make([]int, len(m.Rows))
	for i, row := range m.Rows {
		each[i] = len(row)
	}
	least, most := m.span()
	n, all := float64(len(m.Rows)), float64(len(m.Rows)*shape.Tokens)
	blocks, fixed := float64(h.anchors)/n/s.Mixed.StepMS*1e3, float64(shape.Anchors)/s.StepMS*1e3
	r.Facts["mixed rows"] = fmt.Sprintf("packed of %s documents of %d to %d tokens (log-uniform; %g of each supervised)", joined(each), least, most, supervisedShare)
	r.Facts["ratio of mixed rows"] = "to one document a row, in the same process"
	r.add("mixed, row and update", s.Mixed.StepMS, "ms", s.Mixed.StepMS/s.StepMS, nil)
	r.add("mixed, blocks a second", blocks, "blocks/s", blocks/fixed, goalOn(cuda && shape.Workload == WorkloadW, ratioAtLeast(0.97)))
	r.add("mixed, context tokens a second without padding", float64(h.tokens)/n/s.Mixed.StepMS*1e3, "tokens/s", float64(h.tokens)/all*s.StepMS/s.Mixed.StepMS, nil)
	r.add("mixed, anchors a supervised token", float64(h.anchors)/float64(h.supervised), "", 0, nil)
	r.add("mixed, padding", 100*(1-float64(h.tokens)/all), "%", 0, nil)
	return nil
}

// span gives the shortest and the longest document of the rows.
func (m *mixed) span() (least, most uint32) {
	least = math.MaxUint32
	for _, row := range m.Rows {
		for _, p := range row {
			least, most = min(least, p[3]), max(most, p[3])
		}
	}
	return least, most
}
