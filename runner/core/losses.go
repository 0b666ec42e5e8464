package core

import (
	"github.com/dflash-runner/dflash-runner/runner"
)

// LossSteps is over how many steps a source's loss is a mean: of a step that
// trained it, each later one that does leaves 1-1/LossSteps of its weight.
const LossSteps = 32

// SourceLoss is the recent mean loss of one source of data.
type SourceLoss struct {
	Source int
	Loss   float64
}

// lossMean is a source's loss so far: numerator and weight, both fading.
type lossMean struct{ numerator, weight float64 }

// lossMeans keeps, for each source of the data that was trained on, an
// exponential mean of its loss. A vote has one loss a row, and a row may hold
// samples of several sources: each of them gets the row's loss, with the share
// of the row's weight that its anchors have of all the row's. So a source's
// figure is the mean loss of the rows it lies in, by how much of them it is; what
// it shares rows with shows in it. It is a pure function of the commits of the
// surviving lineage: what a restore undoes is taken back exactly.
type lossMeans struct {
	sources []lossMean // by number; weight 0: not trained on
}

// lossUndo is what a source's mean was before a step.
type lossUndo struct {
	source int
	was    lossMean
}

// commit takes a decided step, and gives what undoes it.
func (m *lossMeans) commit(of func(runner.Sample) int, losses []runner.RowLoss, plans []runner.RowPlan) (undo []lossUndo) {
	if of == nil {
		return nil
	}
	byRow := make(map[runner.Row]runner.RowLoss, len(losses))
	for _, l := range losses {
		byRow[l.Row] = l
	}
	step := map[int]lossMean{}
	var order []int // of their first piece: the same commits give the same bits
	for _, p := range plans {
		l := byRow[p.Row]
		anchors := 0.0
		for _, c := range p.Pieces {
			anchors += float64(c.Anchors)
		}
		if l.Denominator <= 0 || anchors == 0 {
			continue
		}
		for _, c := range p.Pieces {
			s, share := of(c.Sample), float64(c.Anchors)/anchors
			if s < 0 || share == 0 {
				continue
			}
			was, seen := step[s]
			if !seen {
				order = append(order, s)
			}
			step[s] = lossMean{was.numerator + share*l.Numerator, was.weight + share*l.Denominator}
		}
	}
	for _, s := range order {
		undo = append(undo, m.add(s, step[s]))
	}
	return undo
}

// add lets a source's mean fade by a step, and adds that step.
func (m *lossMeans) add(source int, x lossMean) lossUndo {
	if more := source + 1 - len(m.sources); more > 0 {
		m.sources = append(m.sources, make([]lossMean, more)...)
	}
	const kept = 1 - 1.0/LossSteps
	was := m.sources[source]
	m.sources[source] = lossMean{kept*was.numerator + x.numerator, kept*was.weight + x.weight}
	return lossUndo{source, was}
}

// takeBack undoes a step, the newest first.
func (m *lossMeans) takeBack(undo []lossUndo) {
	for _, u := range undo {
		m.sources[u.source] = u.was
	}
}

// all gives the means of those sources that were trained on.
func (m *lossMeans) all() (out []SourceLoss) {
	for s, x := range m.sources {
		if x.weight > 0 {
			out = append(out, SourceLoss{s, x.numerator / x.weight})
		}
	}
	return out
}
