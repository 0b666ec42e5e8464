// Package step is the state machine of one optimiser step over all drafters:
// they join a communicator, train, vote; the step is decided, and only then
// applied by each; or it is aborted for all. It is pure.
//
// A decided step is never aborted; an undecided one is never applied (I5).
package step

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Phase is where the drafters stand together.
type Phase uint8

// The phases.
const (
	Apart      Phase = iota // no communicator
	Joining                 // making one
	Open                    // a step is being trained and voted on
	Committing              // decided: each rank applies it
	Aborting                // undecided and given up: each rank drops it
)

var phaseNames = [...]string{"apart", "joining", "open", "committing", "aborting"}

// String gives the name shown in status.
func (p Phase) String() string { return phaseNames[p] }

// Vote is what a rank says of its share of a step.
type Vote struct {
	Rows   []runner.RowLoss
	Weight uint32 // bits of the reduced f32
	Norm   uint32 // likewise, before clipping
	Finite bool
}

// Rank is one drafter's part.
type Rank struct {
	Done bool // with the phase: joined, voted, committed or aborted
	Gone bool // died since the communicator was made
	Vote Vote
}

// Step is the state of the step that is open, decided last, or aborted.
type Step struct {
	Phase Phase
	N     runner.Step // the step that is open, being committed or being aborted
	Ranks []Rank
}

// Kind is what happens.
type Kind uint8

// The kinds of events.
const (
	Join   Kind = iota // all ranks are asked to join; N is the step after theirs
	Done               // a rank joined, committed or aborted
	Ballot             // a rank voted
	Decide             // the step is decided: lawful only where Judge says so
	Refuse             // a rank, a deadline or the core gives the step up
	Lose               // a rank died
)

// Event is an event; Rank goes with Done, Ballot and Lose, N with Join.
type Event struct {
	Kind Kind
	Rank runner.Rank
	N    runner.Step
	Vote Vote
}

// Next gives the state after an event, and whether it fits. One that does not
// changes nothing.
func Next(s Step, e Event) (Step, bool) {
	s.Ranks = slices.Clone(s.Ranks)
	switch {
	case e.Kind == Join && s.Phase == Apart:
		s.Phase, s.N = Joining, e.N
		clear(s.Ranks)
	case e.Kind == Done && (s.Phase == Joining || s.Phase == Committing || s.Phase == Aborting) && s.waits(e.Rank):
		s.Ranks[e.Rank].Done = true
	case e.Kind == Ballot && s.Phase == Open && s.waits(e.Rank):
		s.Ranks[e.Rank].Done, s.Ranks[e.Rank].Vote = true, e.Vote
	case e.Kind == Decide && s.Phase == Open && s.Judge() == Agreed:
		s.Phase = Committing
		s.reset()
	case e.Kind == Refuse && (s.Phase == Joining || s.Phase == Open):
		s.Phase = Aborting
		s.reset()
	case e.Kind == Lose && s.Phase != Apart && !s.Ranks[e.Rank].Gone:
		if s.Phase == Joining || s.Phase == Open {
			s.Phase = Aborting
			s.reset()
		}
		s.Ranks[e.Rank].Gone = true
	default:
		return s, false
	}
	return s.advance(), true
}

func (s *Step) waits(r runner.Rank) bool { return !s.Ranks[r].Done && !s.Ranks[r].Gone }

// reset keeps only who is gone.
func (s *Step) reset() {
	for i := range s.Ranks {
		s.Ranks[i].Done, s.Ranks[i].Vote = false, Vote{}
	}
}

// advance leaves a phase that every living rank is done with.
func (s Step) advance() Step {
	gone := false
	for _, r := range s.Ranks {
		if !r.Done && !r.Gone {
			return s
		}
		gone = gone || r.Gone
	}
	switch {
	case s.Phase == Joining:
		s.Phase = Open
	case s.Phase == Committing && !gone:
		s.Phase = Open
		s.N++
	case s.Phase == Committing || s.Phase == Aborting:
		s.Phase = Apart
	default:
		return s
	}
	s.reset()
	return s
}

// Verdict is what the votes say.
type Verdict uint8

// The verdicts.
const (
	Wait      Verdict = iota // votes are missing
	Agreed                   // all voted, finite and bit-equal
	NotFinite                // all voted, some not finite
	Differ                   // all voted, finite, and not bit-equal (I10)
)

// Judge reads the votes of an open step.
func (s Step) Judge() Verdict {
	if s.Phase != Open {
		return Wait
	}
	for _, r := range s.Ranks {
		if !r.Done {
			return Wait
		}
	}
	for _, r := range s.Ranks {
		if !r.Vote.Finite {
			return NotFinite
		}
	}
	for _, r := range s.Ranks[1:] {
		if r.Vote.Weight != s.Ranks[0].Vote.Weight || r.Vote.Norm != s.Ranks[0].Vote.Norm {
			return Differ
		}
	}
	return Agreed
}
