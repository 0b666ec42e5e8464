package journal

import (
	"bytes"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// plans holds the newest step plan of every step, with the chain recomputed:
// a plan that is replaced changes the chains of all later ones.
type plans struct {
	steps  []rows.Step    // [n-1] is step n
	chains []runner.Chain // likewise
}

// last is the newest planned step.
func (p *plans) last() runner.Step { return runner.Step(len(p.steps)) }

func (p *plans) of(n runner.Step) *rows.Step {
	if n < 1 || n > p.last() {
		return nil
	}
	return &p.steps[n-1]
}

// chain gives chain(n); step 0's is zeros.
func (p *plans) chain(n runner.Step) runner.Chain {
	if n == 0 {
		return runner.Chain{}
	}
	return p.chains[n-1]
}

// put adds step plan last+1, or replaces an earlier one.
func (p *plans) put(s rows.Step) {
	n := s.Plan.Step
	if n == p.last()+1 {
		p.steps, p.chains = append(p.steps, s), append(p.chains, rows.Chain(p.chain(n-1), s))
		return
	}
	if same(p.steps[n-1], s) {
		return
	}
	p.steps[n-1] = s
	for ; n <= p.last(); n++ {
		p.chains[n-1] = rows.Chain(p.chain(n-1), p.steps[n-1])
	}
}

// same compares step plans by their canonical bytes.
func same(a, b rows.Step) bool {
	return bytes.Equal(rows.AppendStep(nil, a), rows.AppendStep(nil, b))
}
