package core

import (
	"fmt"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// search explores every order in which things can happen in a small world.
// What is eager happens as soon as it can, and nothing in between: their
// interleavings are another search's matter.
type search struct {
	setup   setup
	crashes int
	outages int
	eager   func(*world, move) bool // nil: nothing is eager
	spared  runner.Role             // workers of this role do not die
	limit   int                     // states; more is a failure of the test
}

// result is what a search found.
type result struct {
	states int
	bad    string // the first counterexample, or ""
	path   []move
}

// node is one state: how it was reached, and what follows without bad luck.
type node struct {
	parent int32
	move   move
	next   []int32 // by moves that are no fault
	done   bool
}

type explorer struct {
	s     *search
	seen  map[uint64]int32
	seed  maphash.Seed
	nodes []node
	queue []*world // those not expanded yet, from first on
	first int32
}

// run explores breadth first, so that a counterexample is a shortest one.
func (s *search) run() result {
	x := &explorer{s: s, seen: map[uint64]int32{}, seed: maphash.MakeSeed()}
	w := newWorld(&s.setup, s.crashes, s.outages)
	s.hurry(w)
	if w.bad != "" {
		return result{bad: w.bad}
	}
	x.add(w, -1, move{})
	for len(x.queue) > 0 {
		w := x.queue[0]
		x.queue[0] = nil
		x.queue = x.queue[1:]
		if bad := x.expand(w, x.first); bad != "" {
			return result{len(x.nodes), bad, x.path(int32(len(x.nodes) - 1))}
		}
		if x.first++; len(x.nodes) > s.limit {
			return result{len(x.nodes), fmt.Sprintf("more than %d states", s.limit), nil}
		}
	}
	return x.reach()
}

// add gives a state its number; new ones are queued.
func (x *explorer) add(w *world, parent int32, m move) int32 {
	h := maphash.String(x.seed, w.key())
	if i, ok := x.seen[h]; ok && w.bad == "" {
		return i
	}
	i := int32(len(x.nodes))
	x.seen[h] = i
	x.nodes = append(x.nodes, node{parent: parent, move: m, done: w.finished != nil})
	x.queue = append(x.queue, w)
	return i
}

// expand adds what follows a state; it gives what is wrong with one of them,
// which is then the last node.
func (x *explorer) expand(w *world, i int32) string {
	ms := w.moves()
	good := 0
	for _, m := range ms {
		if m.verb == crash || m.verb == crashIn {
			if w.core.workers[m.i].id.Role == x.s.spared {
				continue
			}
		}
		n := w.clone()
		n.apply1(m)
		x.s.hurry(n)
		j := x.add(n, i, m)
		if n.bad != "" {
			return n.bad
		}
		if !m.fault() {
			x.nodes[i].next = append(x.nodes[i].next, j)
			good++
		}
	}
	if good == 0 && w.finished == nil {
		x.nodes = append(x.nodes, node{parent: i})
		return "I11: stuck\n" + w.state()
	}
	return ""
}

// hurry lets eager things happen.
func (s *search) hurry(w *world) {
	for again := true; again; {
		again = false
		for _, m := range w.moves() {
			if s.eager != nil && s.eager(w, m) && w.bad == "" {
				w.apply1(m)
				again = true
				break
			}
		}
	}
}

// reach checks that from every state the run can still finish without more
// bad luck: no cycle catches it.
func (x *explorer) reach() result {
	back := make([][]int32, len(x.nodes))
	var todo []int32
	can := make([]bool, len(x.nodes))
	for i, n := range x.nodes {
		for _, j := range n.next {
			back[j] = append(back[j], int32(i))
		}
		if n.done {
			can[i], todo = true, append(todo, int32(i))
		}
	}
	for len(todo) > 0 {
		j := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, i := range back[j] {
			if !can[i] {
				can[i], todo = true, append(todo, i)
			}
		}
	}
	for i := range x.nodes {
		if !can[i] {
			return result{len(x.nodes), "I11: the run can never finish from here", x.path(int32(i))}
		}
	}
	return result{states: len(x.nodes)}
}

func (x *explorer) path(i int32) (ms []move) {
	for ; i > 0; i = x.nodes[i].parent {
		ms = append([]move{x.nodes[i].move}, ms...)
	}
	return ms
}

// replay tells a counterexample's story.
func (s *search) replay(ms []move) string {
	v := s.setup
	v.verbose = true
	w := newWorld(&v, s.crashes, s.outages)
	s.hurry(w)
	for _, m := range ms {
		if w.bad == "" {
			w.apply1(m)
			s.hurry(w)
		}
	}
	return w.history()
}

// all runs searches that must find nothing: the first alone in short tests,
// the first few under the race detector, which is slow.
func all(t *testing.T, eager func(*world, move) bool, ss ...search) {
	t.Helper()
	for i, s := range ss {
		if i > 0 && testing.Short() || i > 1 && raceEnabled {
			return
		}
		s.eager, s.limit = eager, 300_000
		s.passes(t)
	}
}

// passes runs a search that must find nothing.
func (s search) passes(t *testing.T) {
	t.Helper()
	begun := time.Now()
	r := s.run()
	t.Logf("%d states in %v", r.states, time.Since(begun).Round(time.Millisecond))
	if r.bad != "" {
		t.Fatalf("%s\nafter %v\n%s", r.bad, r.path, s.replay(r.path))
	}
}

// fails runs a search that must find something.
func (s search) fails(t *testing.T, want string) {
	t.Helper()
	r := s.run()
	t.Logf("%d states: %.200s after %v", r.states, r.bad, r.path)
	if !strings.Contains(r.bad, want) || r.path == nil {
		t.Fatalf("found %q in %d states, want a counterexample with %q", r.bad, r.states, want)
	}
}
