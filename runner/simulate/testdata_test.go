package simulate

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the drawn traces of testdata")

// TestDrawnTraces: the drawn traces of testdata are what their seeds give,
// rounded to a tenth of a millisecond.
func TestDrawnTraces(t *testing.T) {
	base := Trace{Format: Format, Name: "an 8B target on H200s", Source: "configs/traces/h200-8b.json", Shape: Shape{3072, 512, 16, 151936}, Rows: []Row{{3072, 93.5, 138}},
		Costs: Costs{UpdateMS: 8.3, SumMS: 3.3, VoteMS: 1, OrderMS: 0.1, HandOffMS: 1.6, HandOffLocalMS: 1.5, ImageMS: 2517, ImageEvery: 50}}
	for name, c := range map[string]struct {
		s    Synthetic
		slow []Slow
	}{
		"jitter":     {Synthetic{Seed: 1, Rows: 120, Jitter: 0.03}, nil},
		"mixed":      {Synthetic{Seed: 2, Rows: 120, Jitter: 0.03, Mixed: 0.4}, nil},
		"stragglers": {Synthetic{Seed: 3, Rows: 120, Jitter: 0.02, Straggle: 0.03, StraggleBy: 4}, []Slow{{0, 2, 1.15}}},
	} {
		drawn := c.s.Draw(base)
		drawn.Slow = c.slow
		for i := range drawn.Rows {
			r := &drawn.Rows[i]
			r.TargetMS, r.DrafterMS = math.Round(r.TargetMS*10)/10, math.Round(r.DrafterMS*10)/10
		}
		want, err := json.MarshalIndent(drawn, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, '\n')
		path := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: not what its seed gives: go test ./runner/simulate -run Drawn -update; %v", path, err)
		}
		if trace, err := Parse(want); err != nil || len(trace.Rows) != 120 {
			t.Errorf("%s: read again: %v", name, err)
		}
	}
}
