package core

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// patience counts, for each worker that wants a turn, those that others of its
// device were given meanwhile.
type patience struct {
	w       *world
	wanted  []string // rows, answers or steps; empty: nothing
	passed  []int
	longest map[string]int // by what was wanted
}

func watch(w *world) *patience {
	n := len(w.core.workers)
	f := &patience{w: w, wanted: make([]string, n), passed: make([]int, n), longest: map[string]int{}}
	w.after = f.look
	return f
}

func (f *patience) look(as []Action) {
	c := f.w.core
	for _, a := range as {
		if send, ok := a.(Send); ok && (is[runner.Train](send.Order) || is[runner.Commit](send.Order) || is[runner.Produce](send.Order) || is[runner.Evaluate](send.Order)) {
			f.serve(send)
		}
	}
	rows := (&outlook{}).of(c)
	for i := range c.workers {
		k, what := &c.workers[i], ""
		switch {
		case !c.wants(k, rows):
		case k.id.Role == runner.Drafter:
			what = "steps"
		case c.wantsEvaluate(k):
			what = "answers"
		default:
			what = "rows"
		}
		if f.wanted[i] != what {
			f.wanted[i], f.passed[i] = what, 0
		}
	}
}

// serve counts a turn; no row is made where a drafter of the device wants it.
func (f *patience) serve(a Send) {
	c := f.w.core
	own := c.find(a.Life)
	for i := range c.workers {
		k := &c.workers[i]
		if k.device != own.device {
			continue
		}
		if k == own {
			f.passed[i], f.wanted[i] = 0, ""
			continue
		}
		what := f.wanted[i]
		if what == "" {
			continue
		}
		f.passed[i]++
		if what == "steps" && is[runner.Produce](a.Order) && len(c.evals) == 0 && (c.wantsTrain(k) || c.wantsCommit(k)) {
			f.w.fault("turns: %v makes a row while %v wants to train", a.Life, k.id)
		}
		f.longest[what] = max(f.longest[what], f.passed[i])
		if most := f.most(k, what); f.passed[i] > most {
			f.w.fault("turns: %v was passed over %d times while it wanted %s, want at most %d", k.id, f.passed[i], what, most)
		}
	}
}

// most is how often a worker may be passed over: a target that makes rows, for
// as long as a step lasts; any other, by each of its device once, by turns, and
// once more where all reduce.
func (f *patience) most(k *worker, what string) int {
	drafters, all := 0, 0
	for i := range f.w.core.workers {
		if o := &f.w.core.workers[i]; o.device == k.device {
			all++
			if o.id.Role == runner.Drafter {
				drafters++
			}
		}
	}
	if what == "rows" {
		return drafters * (f.w.setup.micros + 1)
	}
	return 2 * (all - 1)
}

// turning draws a run on shared devices: pairs, or all on one.
func turning(r *rand.Rand) *setup {
	s := &setup{targets: 1 + r.IntN(3), drafters: 1 + r.IntN(3), micros: 1 + r.IntN(6), steps: 3 + r.IntN(3), slots: 1 + r.Uint32N(3), imageEvery: runner.Step(r.IntN(3)), budget: 9, verbose: true}
	if s.pairs = r.IntN(3) > 0; !s.pairs {
		s.targets, s.turns = 1, 1+r.IntN(2)
	}
	if r.IntN(2) == 0 {
		s.imageEvery = 1
		s.evaluation = Evaluation{Every: 1, DecodeEvery: 1, AtEnd: true, Heldout: 6, HeldoutChunk: 1, Prompts: 3, PromptChunk: 1, NewTokens: 4}
	}
	return s
}

// TestNoneStarves: on shared devices a drafter that wants a turn goes before a
// target's row; a target still has one in every step, and one that has questions
// to answer has its share.
func TestNoneStarves(t *testing.T) {
	longest := map[string]int{}
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 12))
		s := turning(r)
		w := newWorld(s, 0, 0)
		f := watch(w)
		w.drive(t, r, 6000)
		if w.bad != "" || w.finished.Code != runner.ExitDone {
			t.Fatalf("seed %d: %s, %+v\n%s", seed, w.bad, w.finished, w.history())
		}
		for what, n := range f.longest {
			longest[what] = max(longest[what], n)
		}
	}
	t.Logf("passed over at most %v times", longest)
	if longest["rows"] < 4 || longest["answers"] < 1 {
		t.Errorf("passed over at most %v times: the bounds were not put to the test", longest)
	}
}

// TestAnswersNeedTheirShare: if questions waited behind drafters as rows do,
// a drafter that others feed would keep them waiting.
func TestAnswersNeedTheirShare(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 12))
		s := turning(r)
		s.without.askedFirst = true
		w := newWorld(s, 0, 0)
		watch(w)
		for w.bad == "" && w.finished == nil {
			ms := w.moves()
			w.apply1(ms[r.IntN(len(ms))])
		}
		if strings.Contains(w.bad, "while it wanted answers") {
			t.Log(fmt.Sprintf("seed %d: ", seed) + w.bad)
			return
		}
	}
	t.Error("no history in which a question waited too long")
}
