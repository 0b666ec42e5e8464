package step

import (
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// two gives two ranks in a phase of step 7; done and gone list ranks.
func two(p Phase, done, gone []int) Step {
	s := Step{Phase: p, N: 7, Ranks: make([]Rank, 2)}
	for _, r := range done {
		s.Ranks[r].Done = true
	}
	for _, r := range gone {
		s.Ranks[r].Gone = true
	}
	return s
}

func brief(s Step) (p Phase, n runner.Step, done, gone []int) {
	for i, r := range s.Ranks {
		if r.Done {
			done = append(done, i)
		}
		if r.Gone {
			gone = append(gone, i)
		}
	}
	return s.Phase, s.N, done, gone
}

func TestI5_Next(t *testing.T) {
	voted := two(Open, []int{0, 1}, nil)
	voted.Ranks[0].Vote, voted.Ranks[1].Vote = Vote{Finite: true, Norm: 5}, Vote{Finite: true, Norm: 5}
	first := []int{0}
	for _, c := range []struct {
		name string
		from Step
		e    Event
		want Step
		n    runner.Step
		ok   bool
	}{
		{"apart, all are asked to join", two(Apart, nil, nil), Event{Kind: Join, N: 7}, two(Joining, nil, nil), 7, true},
		{"joining forgets who was gone", two(Apart, nil, first), Event{Kind: Join, N: 8}, two(Joining, nil, nil), 8, true},
		{"nobody joins twice at once", two(Joining, nil, nil), Event{Kind: Join, N: 7}, two(Joining, nil, nil), 7, false},
		{"one joined", two(Joining, nil, nil), Event{Kind: Done, Rank: 0}, two(Joining, first, nil), 7, true},
		{"all joined: the step is open", two(Joining, first, nil), Event{Kind: Done, Rank: 1}, two(Open, nil, nil), 7, true},
		{"a death while joining aborts", two(Joining, first, nil), Event{Kind: Lose, Rank: 1}, two(Aborting, nil, []int{1}), 7, true},
		{"one vote decides nothing", two(Open, nil, nil), Event{Kind: Ballot, Rank: 0}, two(Open, first, nil), 7, true},
		{"a second vote of the same rank does not count", two(Open, first, nil), Event{Kind: Ballot, Rank: 0}, two(Open, first, nil), 7, false},
		{"no decision while a vote is missing", two(Open, first, nil), Event{Kind: Decide}, two(Open, first, nil), 7, false},
		{"all voted and agree: decided", voted, Event{Kind: Decide}, two(Committing, nil, nil), 7, true},
		{"a death before the decision aborts, votes or not", voted, Event{Kind: Lose, Rank: 1}, two(Aborting, nil, []int{1}), 7, true},
		{"a refusal before the decision aborts", voted, Event{Kind: Refuse}, two(Aborting, nil, nil), 7, true},
		{"a decided step is never aborted", two(Committing, nil, nil), Event{Kind: Refuse}, two(Committing, nil, nil), 7, false},
		{"a death after the decision: the others finish it", two(Committing, nil, nil), Event{Kind: Lose, Rank: 1}, two(Committing, nil, []int{1}), 7, true},
		{"and then are apart", two(Committing, nil, []int{1}), Event{Kind: Done, Rank: 0}, two(Apart, nil, []int{1}), 7, true},
		{"all died after the decision: apart", two(Committing, nil, first), Event{Kind: Lose, Rank: 1}, two(Apart, nil, []int{0, 1}), 7, true},
		{"one that applied it and died does not hold up", two(Committing, first, nil), Event{Kind: Lose, Rank: 0}, two(Committing, first, first), 7, true},
		{"all applied it: the next step is open", two(Committing, first, nil), Event{Kind: Done, Rank: 1}, two(Open, nil, nil), 8, true},
		{"a vote after the abort is void", two(Aborting, nil, nil), Event{Kind: Ballot, Rank: 0}, two(Aborting, nil, nil), 7, false},
		{"one aborted", two(Aborting, nil, nil), Event{Kind: Done, Rank: 0}, two(Aborting, first, nil), 7, true},
		{"all living aborted: apart", two(Aborting, nil, []int{1}), Event{Kind: Done, Rank: 0}, two(Apart, nil, []int{1}), 7, true},
		{"all died while aborting: apart", two(Aborting, nil, first), Event{Kind: Lose, Rank: 1}, two(Apart, nil, []int{0, 1}), 7, true},
		{"a death while apart is not the step's affair", two(Apart, nil, nil), Event{Kind: Lose, Rank: 1}, two(Apart, nil, nil), 7, false},
		{"nor is a refusal", two(Apart, nil, nil), Event{Kind: Refuse}, two(Apart, nil, nil), 7, false},
		{"a death is told once", two(Aborting, nil, []int{1}), Event{Kind: Lose, Rank: 1}, two(Aborting, nil, []int{1}), 7, false},
	} {
		before := slices.Clone(c.from.Ranks)
		got, ok := Next(c.from, c.e)
		c.want.N = c.n
		gp, gn, gd, gg := brief(got)
		wp, wn, wd, wg := brief(c.want)
		if ok != c.ok || gp != wp || gn != wn || !slices.Equal(gd, wd) || !slices.Equal(gg, wg) {
			t.Errorf("%s: got %v of step %d, done %v, gone %v, ok %v; want %v of %d, %v, %v, %v", c.name, gp, gn, gd, gg, ok, wp, wn, wd, wg, c.ok)
		}
		for i := range before {
			if before[i].Done != c.from.Ranks[i].Done || before[i].Gone != c.from.Ranks[i].Gone {
				t.Errorf("%s: the older state was changed", c.name)
			}
		}
	}
}

func TestI10_Judge(t *testing.T) {
	ok := Vote{Weight: 1, Norm: 2, Finite: true}
	for _, c := range []struct {
		name  string
		votes []Vote // fewer than two: the rest did not vote
		want  Verdict
	}{
		{"a vote is missing", []Vote{ok}, Wait},
		{"equal and finite", []Vote{ok, ok}, Agreed},
		{"one bit of the norm differs", []Vote{ok, {Weight: 1, Norm: 3, Finite: true}}, Differ},
		{"one bit of the weight differs", []Vote{ok, {Weight: 0, Norm: 2, Finite: true}}, Differ},
		{"one is not finite", []Vote{ok, {Weight: 1, Norm: 2}}, NotFinite},
		{"not finite comes first: a NaN's bits are anything", []Vote{{Norm: 9}, ok}, NotFinite},
		{"the ranks' own losses may differ", []Vote{{Weight: 1, Norm: 2, Finite: true, Rows: []runner.RowLoss{{Row: 1, Numerator: 3}}}, ok}, Agreed},
	} {
		s := two(Open, nil, nil)
		for r, v := range c.votes {
			s, _ = Next(s, Event{Kind: Ballot, Rank: runner.Rank(r), Vote: v})
		}
		if got := s.Judge(); got != c.want {
			t.Errorf("%s: got verdict %d, want %d", c.name, got, c.want)
		}
		if _, decided := Next(s, Event{Kind: Decide}); decided != (c.want == Agreed) {
			t.Errorf("%s: decided is %v", c.name, decided)
		}
	}
}
