package up

import (
	"maps"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestMeter goes through a run on a clock of its own: every part gets what was
// used in it, and rows only what was used between the first and last decision.
func TestMeter(t *testing.T) {
	used := 0.0
	m := newMeter(func() float64 { return used })
	decided := func(rows float64) {
		m.observe(runner.Event{Name: "step decided", Figures: map[string]float64{"rows": rows}})
	}
	if p := m.picture(); p.RowMS != nil || p.Rows != 0 {
		t.Errorf("at the start: got %+v, want no rows", p)
	}
	for _, step := range []struct {
		uses float64
		then func()
	}{
		{1, func() { m.enter(partLaunch) }},
		{2, m.warms},
		{4, m.warms}, // of the next worker
		{8, func() { decided(4) }},
		{0.016, func() { decided(4) }},
		{0.032, func() { m.observe(runner.Event{Name: "image taken"}) }},
		{0.016, func() { decided(2) }},
		{16, m.warms}, // a worker that is of no use any more
		{16, m.leave},
		{64, func() {}},
	} {
		used += step.uses
		step.then()
	}
	p := m.picture()
	want := map[string]float64{"start": 1, "launch": 2, "warm_up": 12, "train": 0.064, "finish": 32, "export": 64}
	for part, x := range p.Parts {
		if d := x - want[part]; d > 1e-9 || d < -1e-9 {
			t.Errorf("%s: got %v, want %v", part, x, want[part])
		}
	}
	if len(p.Parts) != len(want) || p.Rows != 6 || p.RowMS == nil || *p.RowMS < 10.666 || *p.RowMS > 10.667 {
		t.Errorf("got %+v, want %v and 6 rows of 10.67 ms", p, want)
	}
	if again := m.picture(); !maps.Equal(again.Parts, p.Parts) {
		t.Errorf("asked again: got %v, want %v", again.Parts, p.Parts)
	}
}
