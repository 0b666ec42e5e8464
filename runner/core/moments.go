package core

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Moments are when the parts of a run began and ended in this supervisor's
// life, for people. A zero time: not yet.
type Moments struct {
	Training time.Time // the first order to train was sent
	Decided  time.Time // of the newest decided step
	Before   Span      // evaluation of step 0
	After    Span      // evaluation of the run's last step
}

// Span is one evaluation from its first order to its last result. Training goes
// on beside it: a target answers its questions between rows.
type Span struct {
	Began, Ended time.Time
	Open         bool   // more is to come; false with no Ended: never begun, or dropped
	Done, Total  uint64 // prompts and samples
	What         string // is asked now: "loss", "plain" or "decode"
}

// begin notes the first beginning: an evaluation whose target died begins anew.
func (s *Span) begin(now time.Time) {
	if s.Began.IsZero() {
		s.Began = now
	}
}

func (s *Span) end(now time.Time, total uint64) { s.Ended, s.Done, s.Total = now, total, total }

// span gives where an evaluation of step n is noted, last or not; those on the
// way of training are noted nowhere.
func (m *Moments) span(n runner.Step, last bool) *Span {
	switch {
	case n == 0:
		return &m.Before
	case last:
		return &m.After
	}
	return &Span{}
}

// moments gives the moments, with how far the open evaluations are.
func (c *Core) moments() Moments {
	m := c.figures.moments
	for _, e := range c.evals {
		s := m.span(e.step, c.over(e.step+1))
		s.Open, s.Done, s.Total = true, e.done, e.total
		if len(e.todo) > 0 {
			s.What = e.todo[0].what
		}
	}
	return m
}
