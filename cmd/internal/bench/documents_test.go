package bench

import (
	"math"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestMixedRows: rows of the reference hold whole documents of the pool, side by
// side, with as many anchors as the shape has, and are packed no worse than all.
func TestMixedRows(t *testing.T) {
	w := named(t, WorkloadW)
	m, err := mixedOf(w)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Rows) != 8 || len(m.Documents) != 512 {
		t.Fatalf("want 8 rows of 512 documents, got %d of %d", len(m.Rows), len(m.Documents))
	}
	short := 0
	for _, d := range m.Documents {
		if d[0] < 256 || d[0] > 3072 || math.Abs(float64(d[1])-0.6*float64(d[0])) > 0.5 {
			t.Errorf("want 256 to 3072 tokens, 0.6 of them supervised, got %v", d)
		}
		if float64(d[0]) < math.Sqrt(256*3072) {
			short++
		}
	}
	if short < 512*9/20 || short > 512*11/20 { // half of them, in logarithms
		t.Errorf("want about half of 512 documents below 887 tokens, got %d", short)
	}
	seen, several := map[uint32]bool{}, 0
	for _, row := range m.Rows {
		end, anchors := uint32(0), uint32(0)
		for _, p := range row {
			if p[2] != end || p[3] != m.Documents[p[0]][0] || p[4] >= m.Documents[p[0]][1] || seen[p[0]] {
				t.Errorf("piece %v of document %v after %d tokens", p, m.Documents[p[0]], end)
			}
			seen[p[0]] = true
			end, anchors = end+p[3], anchors+p[4]
		}
		if end > 3072 || anchors > 512 {
			t.Errorf("row of %d tokens with %d anchors", end, anchors)
		}
		several += min(1, len(row)/2)
	}
	if several < 4 {
		t.Errorf("want several documents in most rows, got %v", m.Rows)
	}
	if h := m.held(); h.tokens < 8*3072*9/10 || h.anchors < 8*512*95/100 {
		t.Errorf("want rows nearly full of tokens and anchors, got %+v", h)
	}
}

func TestMixedRowsOfSmallShapes(t *testing.T) {
	for _, tokens := range []int{8, 64, 700} {
		s := named(t, WorkloadTiny).With(Sizes{Tokens: tokens, Anchors: 3})
		m, err := mixedOf(s)
		if err != nil {
			t.Fatalf("rows of %d: %v", tokens, err)
		}
		if least, most := m.span(); least < 4 || most > uint32(tokens) {
			t.Errorf("rows of %d: want documents of 4 tokens or more, got %d to %d", tokens, least, most)
		}
	}
}

func TestMixedFigures(t *testing.T) {
	w := named(t, WorkloadW)
	m := &mixed{Documents: []document{{2000, 1200}, {1000, 600}, {1536, 900}}, Rows: [][]piece{{{0, 0, 0, 2000, 300}, {1, 0, 2000, 1000, 212}}, {{2, 0, 0, 1536, 500}}}}
	s := steps{RowMS: 100, StepMS: 120, TeraFLOP: 60, MatmulTFLOPS: 1000}
	s.Mixed = &struct {
		StepMS float64 `json:"step_ms"`
	}{124}
	r := start("step")
	if err := r.steps(s, w, m, true); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]float64{
		"mixed, row and update":                          {124, 124. / 120},
		"mixed, blocks a second":                         {506 / 0.124, 506. / 124 / (512. / 120)}, // anchors that are there, of places
		"mixed, context tokens a second without padding": {2268 / 0.124, 2268. / 124 / (3072. / 120)},
		"mixed, anchors a supervised token":              {1012. / 2700, 0},
		"mixed, padding":                                 {100 * (1 - 4536./6144), 0},
	} {
		f := exactly(t, r, name)
		if math.Abs(f.Value-want[0]) > 1e-9*want[0] || want[1] != 0 && (f.Ratio == nil || math.Abs(*f.Ratio-want[1]) > 1e-9) {
			t.Errorf("%s: want %v, got %+v", name, want, f)
		}
	}
	if f := exactly(t, r, "mixed, blocks a second"); f.Met == nil || *f.Met || f.Goal.Limit != 0.97 {
		t.Errorf("goal at a ratio of 0.956: want missed, got %+v", f)
	}
	if got := r.Facts["mixed rows"]; got != "packed of 2, 1 documents of 1000 to 2000 tokens (log-uniform; 0.6 of each supervised)" {
		t.Errorf("facts: got %q", got)
	}
	s.Mixed = nil
	if err := start("step").steps(s, w, m, true); runner.KindOf(err) != runner.Internal {
		t.Errorf("no time of mixed rows: want internal, got %v", err)
	}
}
