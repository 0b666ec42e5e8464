package simulate

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Worker is one worker of a node and the device that it computes on, by its
// place in Setup.Turns. Ranks are those of the node.
type Worker struct {
	Worker runner.Worker
	Device int
}

// Setup is what is simulated.
type Setup struct {
	Trace       Trace
	Nodes       int      // alike
	Workers     []Worker // of one node: targets by rank, then drafters by rank
	Turns       []int    // of one node's devices
	Slots       int      // of each target
	RowsPerStep int      // over all nodes; a multiple of all drafters
	Steps       int
	// Assign chooses among free targets; nil: the first whose device has a turn,
	// as the built-in does.
	Assign Assigner
	// Trail keeps every span for a chart.
	Trail bool
	// hold takes the place of pacing, and of the rule that nothing new begins where
	// all ranks wait for the last micro-step: tests search other schedules with it.
	hold func(w *world, n *node, i int) bool
}

// Assigner chooses the target that makes a row: a place in free, which has two
// entries or more. A choice stands until the target makes the row.
type Assigner func(row runner.Row, tokens int, free []Candidate) (int, error)

// Candidate is a target that could make the lowest row that nobody made: it
// computes nothing, and has a free slot.
type Candidate struct {
	Target runner.Worker
	Turn   bool // its device has a free turn
}

// maxSize bounds workers and rows, so that memory is bounded too.
const maxSize = 1 << 24

// Check refuses a setup that says no run.
func (s Setup) Check() error {
	if err := s.Trace.Check(); err != nil {
		return err
	}
	targets, drafters := s.count()
	switch {
	case s.Nodes < 1 || s.Slots < 1 || s.Steps < 1:
		return runner.Errorf(runner.Invalid, "simulate: want nodes, slots and steps, got %d, %d and %d", s.Nodes, s.Slots, s.Steps)
	case targets < 1 || drafters < 1:
		return runner.Errorf(runner.Invalid, "simulate: want a target and a drafter at least, got %d and %d", targets, drafters)
	case s.RowsPerStep < 1 || s.RowsPerStep%(drafters*s.Nodes) != 0:
		return runner.Errorf(runner.Invalid, "simulate: rows_per_step: want a multiple of the %d drafters, got %d", drafters*s.Nodes, s.RowsPerStep)
	case s.RowsPerStep > maxSize/s.Steps || s.Nodes > maxSize/len(s.Workers):
		return runner.Errorf(runner.Exhausted, "simulate: want at most %d rows and workers, got %d steps of %d rows and %d workers", maxSize, s.Steps, s.RowsPerStep, s.Nodes*len(s.Workers))
	}
	for _, w := range s.Workers {
		if w.Device < 0 || w.Device >= len(s.Turns) || s.Turns[w.Device] < 1 {
			return runner.Errorf(runner.Invalid, "simulate: %s: want a device with turns, got device %d of %d", w.Worker, w.Device, len(s.Turns))
		}
	}
	for i, slow := range s.Trace.Slow {
		if slow.Node >= s.Nodes || slow.Device >= len(s.Turns) {
			return runner.Errorf(runner.Invalid, "simulate: slow[%d]: want one of %d devices of %d nodes, got device %d of node %d", i, len(s.Turns), s.Nodes, slow.Device, slow.Node)
		}
	}
	return nil
}

// count gives a node's targets and drafters.
func (s Setup) count() (targets, drafters int) {
	for _, w := range s.Workers {
		if w.Worker.Role == runner.Target {
			targets++
		} else {
			drafters++
		}
	}
	return targets, drafters
}

// factor is how much longer everything takes on a device.
func (s Setup) factor(node, device int) float64 {
	f := 1.0
	for _, slow := range s.Trace.Slow {
		if slow.Node == node && slow.Device == device {
			f *= slow.Factor
		}
	}
	return f
}

// sum is what the sum of gradients adds to a step.
func (s Setup) sum() time.Duration {
	_, d := s.count()
	n := float64(d * s.Nodes)
	return ms(s.Trace.Costs.SumMS * (n - 1) / n)
}

// micros is how many rows a rank trains in a step.
func (s Setup) micros() int {
	_, d := s.count()
	return s.RowsPerStep / (d * s.Nodes)
}

// rowAt gives the place in the trace of row j of a node, which counts its own
// rows from 0: those of a micro-step lie side by side over all nodes. d is the
// drafters of a node.
func (s *Setup) rowAt(d, node, j int) int {
	return j/d*(d*s.Nodes) + node*d + j%d
}
