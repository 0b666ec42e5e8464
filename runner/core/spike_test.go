package core

import (
	"math"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// series gives n figures: x, and then rest.
func series(n int, x float64, rest ...float64) []float64 {
	out := make([]float64, 0, n+len(rest))
	for range n {
		out = append(out, x)
	}
	return append(out, rest...)
}

// What is a spike: the last figure of each series, judged by all before it.
func TestSpikes(t *testing.T) {
	falling := make([]float64, 40)
	for i := range falling {
		falling[i] = 10 * math.Exp(-float64(i)/10)
	}
	for _, c := range []struct {
		name  string
		loss  []float64
		norm  []float64
		bound Spikes
		want  string // part of what is said; empty: nothing
	}{
		{"as ever", series(40, 2, 2.1), series(40, 1, 1.2), Spikes{3, 10}, ""},
		{"a high loss", series(40, 2, 6.1), series(40, 1, 1), Spikes{3, 10}, "loss 6.1 is 3.0 times the median"}, // 3.05
		{"just the bound is none", series(40, 2, 6), series(40, 1, 1), Spikes{3, 10}, ""},
		{"a high norm", series(40, 2, 2), series(40, 0.5, 6), Spikes{3, 10}, "gradient norm 6 is 12.0 times the median"},
		{"an infinite norm", series(40, 2, 2), series(40, 0.5, math.Inf(1)), Spikes{3, 10}, "gradient norm +Inf"},
		{"not looked at", series(40, 2, 60), series(40, 0.5, 60), Spikes{}, ""},
		{"the first steps", series(15, 2, 60), series(15, 1, 60), Spikes{3, 10}, ""},
		{"enough of them", series(16, 2, 60), series(16, 1, 1), Spikes{3, 10}, "loss 60"},
		{"falling fast is none", falling, series(40, 1), Spikes{3, 10}, ""},
		{"spikes before do not hide one", append(series(30, 2), series(10, 60, 60)...), series(40, 1, 1), Spikes{3, 10}, "loss 60 is 30.0 times"},
		{"what lasts becomes the rule", append(series(30, 2), series(20, 60, 60)...), series(50, 1, 1), Spikes{3, 10}, ""},
		{"zeros are nothing to compare with", series(40, 0, 5), series(40, 0, 5), Spikes{3, 10}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s spikes
			var said []string
			for i := range c.loss {
				said = s.look(runner.Step(i+1), c.loss[i], true, c.norm[i], c.bound)
			}
			got := strings.Join(said, "; ")
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Fatalf("said %q, want %q", got, c.want)
			}
			last := runner.Step(len(c.loss))
			if c.want != "" && (!strings.Contains(s.shown(last), c.want) || s.shown(last+spikeWindow) == "" || s.shown(last+spikeWindow+1) != "") {
				t.Errorf("shown %q, later %q, at last %q", s.shown(last), s.shown(last+spikeWindow), s.shown(last+spikeWindow+1))
			}
		})
	}
}

// A step without a trained row is nothing to compare with.
func TestSpikesOfSkippedSteps(t *testing.T) {
	var s spikes
	for i := range 40 {
		s.look(runner.Step(i+1), 2, true, 1, Spikes{3, 10})
		s.look(runner.Step(i+1), 0, false, 0, Spikes{3, 10})
	}
	if s.loss.n != 40 || s.norm.n != 40 {
		t.Errorf("%d and %d figures, want 40 of each", s.loss.n, s.norm.n)
	}
}
