package core

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner/step"
)

// Stalls is how long decisions of this supervisor's life waited once all votes
// were there and agreed, for people.
type Stalls struct {
	Training time.Duration // from the first order to train to the newest decision: what the others are shares of
	Image    time.Duration // waited for an image of the step before, which the commit would change
	Journal  time.Duration // for the plan to be durable
	Commits  uint64        // that waited for an image
	Longest  time.Duration // wait of one of them
	open     time.Duration // of the step that is not decided yet
}

// hold is what keeps an agreed step from its decision.
type hold uint8

const (
	holdNone hold = iota // no step is agreed, or nothing keeps it
	holdJournal
	holdImage
)

// keptBy says what keeps the open step, all of whose votes agree, from being
// decided. decide asks the same in the same order.
func (c *Core) keptBy() hold {
	if c.step.Judge() != step.Agreed {
		return holdNone
	}
	switch p := c.planOf(c.step.N); {
	case c.journal.durable < p.number && !c.cfg.without.durablePlan:
		return holdJournal
	case c.imageDue() || c.imageReads():
		return holdImage
	}
	return holdNone
}

// spend puts time of training down to what kept a decision.
func (s *Stalls) spend(on hold, d time.Duration) {
	s.Training += d
	switch on {
	case holdJournal:
		s.Journal += d
	case holdImage:
		s.Image += d
		s.open += d
	}
}

// decided closes the wait of the step that was decided and gives it.
func (s *Stalls) decided() (waited time.Duration) {
	waited, s.open = s.open, 0
	if waited > 0 {
		s.Commits++
		s.Longest = max(s.Longest, waited)
	}
	return waited
}
