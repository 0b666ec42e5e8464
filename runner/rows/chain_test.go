package rows

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

func steps(t testing.TB) []Step {
	t.Helper()
	g := rand.New(rand.NewPCG(5, 6))
	ix := randomIndex(g, 50, 20)
	p, err := NewPlanner(ix, Config{Buckets: []uint32{16, 32}, Anchors: 8, RowsPerStep: 4, Drafters: 2, Draws: 1, Schedule: Schedule{Peak: 1e-3, Total: 20}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Feed(1, Order(1, 1, p.Plannable(), 1)); err != nil {
		t.Fatal(err)
	}
	var out []Step
	for s, ok := p.Next(); ok; s, ok = p.Next() {
		out = append(out, s)
	}
	return out
}

func TestParseStep(t *testing.T) {
	for _, s := range append(steps(t), Step{}) {
		b := AppendStep(nil, s)
		got, rest, err := ParseStep(append(b, "rest"...))
		if err != nil || string(rest) != "rest" || !bytes.Equal(AppendStep(nil, got), b) {
			t.Fatalf("got %+v, %q, %v, want %+v", got, rest, err, s)
		}
		if s.Plan.Step > 0 && !reflect.DeepEqual(got, s) {
			t.Errorf("got %+v, want %+v", got, s)
		}
		for n := range b { // cut anywhere
			if _, _, err := ParseStep(b[:n]); err == nil {
				t.Fatalf("cut at %d of %d: read", n, len(b))
			}
		}
	}
}

func FuzzParseStep(f *testing.F) {
	for _, s := range steps(f) {
		f.Add(AppendStep(nil, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, rest, err := ParseStep(b)
		if err != nil {
			return
		}
		if again := AppendStep(nil, s); !math.IsNaN(s.Plan.LR) && !bytes.Equal(again, b[:len(b)-len(rest)]) {
			t.Fatalf("%x reads as %+v, which is written %x", b, s, again)
		}
	})
}
