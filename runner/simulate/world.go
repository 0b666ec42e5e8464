package simulate

import (
	"container/heap"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pace"
)

// world is a run at a moment.
type world struct {
	s      Setup
	now    time.Duration
	events queue
	order  uint64 // of events at one time
	nodes  []node

	targets, drafters int // of a node
	ranks             int // of all nodes
	micros            int
	rows              int // of a node, in the whole run
	sumTime           time.Duration

	step       int // that is open or being committed, from 0
	committing bool
	ready      int // ranks that wait for the last micro-step alone
	busy       int // drafters' devices with a turn taken
	voted      int
	committed  int
	imageUntil time.Duration // no decision before it
	err        error
	result     Result
}

// node is one node's workers.
type node struct {
	index   int
	devices []device
	workers []worker // targets, then drafters
	made    int      // rows that were given to a target
	where   []int32  // by row of the node: 1 + the target whose slot holds it full; 0: nowhere
	grants  uint64
	chosen  int   // target chosen for row made; -1: none
	firsts  []int // scratch: by device, 1 + the worker that goes first of those that want a turn
	free    []int // scratch: targets that could make the next row
	pairs   bool  // rows are paced
	pace    pacing
}

type device struct {
	turns, taken int
	factor       float64
	trains       int // drafters on it
}

// worker is a target or a drafter.
type worker struct {
	id      runner.Worker
	device  int
	granted uint64
	doing   Cause
	since   time.Duration
	span    int // in result.Spans; -1: none
	used    [causes]time.Duration

	computing bool
	row       int // that it makes, of the node
	began     time.Duration
	lately    pace.Lately // rows that it made; micro-steps but last ones
	free      int         // of a target: slots

	pulled, arrived, started, finished int // of a drafter: rows, in its order
	copyFree                           time.Duration
	sent                               bool // commit of the step
}

// Run simulates. An error of the assigner ends it, and is given back.
func Run(s Setup) (Result, error) {
	if err := s.Check(); err != nil {
		return Result{}, err
	}
	w := newWorld(s)
	w.touch(nil)
	for w.err == nil && len(w.events) > 0 {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		w.touch(e.happens())
	}
	if w.err != nil {
		return Result{}, w.err
	}
	if w.step < s.Steps {
		return Result{}, runner.Errorf(runner.Internal, "simulate: stuck in step %d of %d after %s", w.step+1, s.Steps, w.now)
	}
	w.finish()
	return w.result, nil
}

func newWorld(s Setup) *world {
	w := &world{s: s, micros: s.micros(), sumTime: s.sum()}
	w.targets, w.drafters = s.count()
	w.ranks, w.rows = w.drafters*s.Nodes, w.drafters*s.micros()*s.Steps
	w.nodes = make([]node, s.Nodes)
	for i := range w.nodes {
		n := node{index: i, chosen: -1, where: make([]int32, w.rows), firsts: make([]int, len(s.Turns))}
		for d, turns := range s.Turns {
			n.devices = append(n.devices, device{turns: turns, factor: s.factor(i, d)})
		}
		for _, role := range []runner.Role{runner.Target, runner.Drafter} {
			for _, p := range s.Workers {
				if p.Worker.Role != role {
					continue
				}
				if role == runner.Drafter {
					n.devices[p.Device].trains++
				}
				n.workers = append(n.workers, worker{id: p.Worker, device: p.Device, free: s.Slots, span: -1, doing: Nothing})
			}
		}
		n.pairs = w.ranks > 1 && n.paired(w.targets)
		w.nodes[i] = n
	}
	return w
}

// touch lets what can begin begin, after something happened on a node; nil: on
// all of them.
func (w *world) touch(n *node) {
	was := w.reducing()
	for again := true; again && w.err == nil; {
		again = false
		if n != nil {
			again = w.settle(n)
		} else {
			for i := range w.nodes {
				again = w.settle(&w.nodes[i]) || again
			}
		}
		if w.reduce() {
			n, again = nil, true
		}
	}
	if w.reducing() != was {
		n = nil // what everybody waits for is another now
	}
	if n != nil {
		w.account(n)
		return
	}
	for i := range w.nodes {
		w.account(&w.nodes[i])
	}
}

// all gives the targets and the drafters of a node.
func (w *world) all(n *node) (targets, drafters []worker) {
	return n.workers[:w.targets], n.workers[w.targets:]
}

// event is something that ends. happens gives the node that it touches, or nil
// where that is all of them.
type event struct {
	at      time.Duration
	order   uint64
	happens func() *node
}

func (w *world) at(t time.Duration, happens func() *node) {
	w.order++
	heap.Push(&w.events, event{t, w.order, happens})
}
