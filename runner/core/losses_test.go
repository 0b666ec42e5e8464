package core

import (
	"math"
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// checkLosses asks of a finished run that its losses by source are those of the
// surviving lineage's commits alone, bit for bit, whatever was restored.
func (w *world) checkLosses() {
	r := resumeOf(w.journal, nil)
	var want lossMeans
	for i, rec := range r.Commits {
		want.commit(parity, rec.Rows, r.Plans[i].Rows)
	}
	if got := w.core.View().Losses; !slices.Equal(got, want.all()) {
		w.fault("losses by source are %v, want %v", got, want.all())
	}
}

// piece is a part of a row, of as many anchors.
func piece(s runner.Sample, anchors uint32) runner.Piece {
	return runner.Piece{Sample: s, Tokens: 8, Anchors: anchors}
}

// TestLossesBySource: figures worked out by hand. Samples below 10 are of source
// 0, then of source 1, and so on; those of 30 on of none.
func TestLossesBySource(t *testing.T) {
	of := func(s runner.Sample) int {
		if s >= 30 {
			return -1
		}
		return int(s) / 10
	}
	const kept = 31.0 / 32
	for _, c := range []struct {
		name  string
		steps [][]runner.RowPlan
		loss  [][]runner.RowLoss
		want  []SourceLoss
	}{
		{"nothing", nil, nil, nil},
		{"a row of one source is all its own",
			[][]runner.RowPlan{{{Row: 1, Pieces: []runner.Piece{piece(12, 4)}}}},
			[][]runner.RowLoss{{{Row: 1, Numerator: 6, Denominator: 3}}}, []SourceLoss{{1, 2}}},
		{"rows of a step weigh by their weight, and a row by its anchors",
			[][]runner.RowPlan{{{Row: 1, Pieces: []runner.Piece{piece(1, 3), piece(11, 1)}}, {Row: 2, Pieces: []runner.Piece{piece(12, 4)}}}},
			[][]runner.RowLoss{{{Row: 1, Numerator: 8, Denominator: 4}, {Row: 2, Numerator: 9, Denominator: 3}}},
			[]SourceLoss{{0, 2}, {1, (2 + 9.0) / (1 + 3)}}},
		{"a later step counts for more; a source that is not in it stays",
			[][]runner.RowPlan{{{Row: 1, Pieces: []runner.Piece{piece(1, 1)}}, {Row: 2, Pieces: []runner.Piece{piece(11, 1)}}}, {{Row: 3, Pieces: []runner.Piece{piece(2, 1)}}}},
			[][]runner.RowLoss{{{Row: 1, Numerator: 4, Denominator: 1}, {Row: 2, Numerator: 5, Denominator: 1}}, {{Row: 3, Numerator: 2, Denominator: 1}}},
			[]SourceLoss{{0, (kept*4 + 2) / (kept + 1)}, {1, 5}}},
		{"no weight, no anchors, no vote, no source: no loss",
			[][]runner.RowPlan{{{Row: 1, Pieces: []runner.Piece{piece(1, 1)}}, {Row: 2, Pieces: []runner.Piece{piece(1, 0)}}, {Row: 3, Pieces: []runner.Piece{piece(1, 1)}}, {Row: 4, Pieces: []runner.Piece{piece(30, 1)}}}},
			[][]runner.RowLoss{{{Row: 1}, {Row: 2, Numerator: 1, Denominator: 1}, {Row: 4, Numerator: 1, Denominator: 1}}}, nil},
	} {
		var m lossMeans
		var undos [][]lossUndo
		for i := range c.steps {
			undos = append(undos, m.commit(of, c.loss[i], c.steps[i]))
		}
		got := m.all()
		if len(got) != len(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			continue
		}
		for i := range got {
			if got[i].Source != c.want[i].Source || math.Abs(got[i].Loss-c.want[i].Loss) > 1e-12 {
				t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			}
		}
		for _, u := range slices.Backward(undos) {
			m.takeBack(u)
		}
		if left := m.all(); left != nil {
			t.Errorf("%s: after all steps were taken back there is %v", c.name, left)
		}
	}
}

// TestArrangeIsToldLosses: nothing of what was not trained on; then what the
// view shows.
func TestArrangeIsToldLosses(t *testing.T) {
	x := stage(t, setup{targets: 1, drafters: 1, micros: 2, steps: 6, slots: 1, budget: 9}, func(w *world) bool { return w.finished != nil })
	var told []Arrange
	for _, a := range x.acts {
		if a, ok := a.(Arrange); ok {
			told = append(told, a)
		}
	}
	if len(told) < 3 || told[0].Losses != nil || len(told[len(told)-1].Losses) != 2 {
		t.Errorf("arrange was told %+v, want no loss at first and one of both sources at last", told)
	}
}
