// Package placement decides which worker runs on which device, how many may
// compute there at once, and what memory they will take. It is pure: what the
// machine has is given to it.
package placement

import (
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// CPU is the device of every worker that has no GPU.
const CPU = "cpu"

// GPU is one device to place on, named by its UUID.
type GPU struct {
	UUID  string
	Index int
	Name  string
	Bytes uint64 // that may be taken
	Busy  string // why nothing should be placed there; empty: it is free
}

// Wanted is what the configuration asks for and what the machine has.
type Wanted struct {
	Targets, Drafters int
	CUDA              bool   // else everything runs on the CPU
	GPUs              []GPU  // in the order in which to use them
	Colocate          string // auto, true or false
	Turns             int    // 0: one on a GPU, as many as the cores allow on a CPU
	Threads, Cores    int    // of each worker, and of the machine
	TargetBytes       uint64 // what a worker of each role takes on its device
	DrafterBytes      uint64
}

// Placed is a worker and its device.
type Placed struct {
	Worker runner.Worker
	Device string
}

// Plan is where everything runs. Turns says how many workers may compute at
// once on each device.
type Plan struct {
	Workers []Placed // targets by rank, then drafters
	Turns   map[string]int
}

// Place decides. The same input gives the same plan.
func Place(w Wanted) (Plan, error) {
	if w.Targets < 1 || w.Drafters < 1 {
		return Plan{}, runner.Errorf(runner.Invalid, "place workers: want a target and a drafter at least, got %d and %d", w.Targets, w.Drafters)
	}
	if !w.CUDA {
		return onCPU(w)
	}
	if err := checkGPUs(w.GPUs); err != nil {
		return Plan{}, err
	}
	switch w.Colocate {
	case "false":
		return apart(w)
	case "true":
		return paired(w)
	case "auto":
		if w.Targets+w.Drafters <= free(w.GPUs) {
			return apart(w)
		}
		return paired(w)
	}
	return Plan{}, runner.Errorf(runner.Invalid, "place workers: colocate: want auto, true or false, got %q", w.Colocate)
}

// free counts the GPUs that something may be placed on.
func free(gpus []GPU) (n int) {
	for _, g := range gpus {
		if g.Busy == "" {
			n++
		}
	}
	return n
}

func onCPU(w Wanted) (Plan, error) {
	if w.Threads < 1 || w.Cores < 1 {
		return Plan{}, runner.Errorf(runner.Invalid, "place workers: want threads and cores, got %d and %d", w.Threads, w.Cores)
	}
	turns := w.Turns
	if turns == 0 {
		turns = max(1, w.Cores/w.Threads)
	}
	p := Plan{Turns: map[string]int{CPU: turns}}
	for _, worker := range workers(w) {
		p.Workers = append(p.Workers, Placed{worker, CPU})
	}
	return p, nil
}

// checkGPUs refuses a list that would put two workers where one is meant.
func checkGPUs(gpus []GPU) error {
	if len(gpus) == 0 {
		return runner.Errorf(runner.Exhausted, "place workers: want a GPU, got none").
			WithHint("set workers.device to cpu, or see what doctor says of the GPUs")
	}
	for i, g := range gpus {
		if g.UUID == "" || slices.ContainsFunc(gpus[:i], func(o GPU) bool { return o.UUID == g.UUID }) {
			return runner.Errorf(runner.Invalid, "place workers: devices[%d]: want a UUID of its own, got %q", i, g.UUID)
		}
	}
	return nil
}

// apart gives every worker a GPU of its own.
func apart(w Wanted) (Plan, error) {
	all := workers(w)
	if len(all) > len(w.GPUs) {
		return Plan{}, runner.Errorf(runner.Invalid, "place workers: %d targets and %d drafters want %d GPUs of their own, got %d",
			w.Targets, w.Drafters, len(all), len(w.GPUs)).WithHint("ask for fewer workers, or let two share a GPU: workers.colocate: true")
	}
	p := Plan{Turns: map[string]int{}}
	for i, worker := range all {
		if err := w.put(&p, worker, w.GPUs[i]); err != nil {
			return Plan{}, err
		}
	}
	return p, nil
}

// paired puts target n and drafter n on GPU n: two of one role never share,
// as they would compute the same thing in turns.
func paired(w Wanted) (Plan, error) {
	if most := max(w.Targets, w.Drafters); most > len(w.GPUs) {
		return Plan{}, runner.Errorf(runner.Invalid, "place workers: %d targets and %d drafters in pairs want %d GPUs, got %d",
			w.Targets, w.Drafters, most, len(w.GPUs)).WithHint("ask for at most one target and one drafter a GPU")
	}
	p := Plan{Turns: map[string]int{}}
	for _, worker := range workers(w) {
		if err := w.put(&p, worker, w.GPUs[worker.Rank]); err != nil {
			return Plan{}, err
		}
	}
	return p, nil
}

// put adds a worker to a device if it still fits there.
func (w Wanted) put(p *Plan, worker runner.Worker, g GPU) error {
	if g.Busy != "" {
		return runner.Errorf(runner.Exhausted, "place %s on GPU %d (%s): want one that nobody else uses, but %s", worker, g.Index, g.UUID, g.Busy).
			WithHint("name free GPUs in workers.devices, or share this one: workers.busy_devices: allow")
	}
	need := w.bytes(worker.Role)
	others := ""
	for _, placed := range p.Workers {
		if placed.Device == g.UUID {
			need += w.bytes(placed.Worker.Role)
			others = " beside " + placed.Worker.String()
		}
	}
	if need > g.Bytes {
		return runner.Errorf(runner.Exhausted, "place %s%s on %s: want %d MiB, got %d MiB", worker, others, g.UUID, need>>20, g.Bytes>>20).
			WithHint("`dflash-runner plan --fit` chooses anchors and buckets that fit; or give each worker a GPU of its own")
	}
	p.Workers = append(p.Workers, Placed{worker, g.UUID})
	p.Turns[g.UUID] = max(1, w.Turns)
	return nil
}

func (w Wanted) bytes(r runner.Role) uint64 {
	if r == runner.Target {
		return w.TargetBytes
	}
	return w.DrafterBytes
}

// workers gives all of them, targets first.
func workers(w Wanted) []runner.Worker {
	var all []runner.Worker
	for i := range w.Targets {
		all = append(all, runner.Worker{Role: runner.Target, Rank: runner.Rank(i)})
	}
	for i := range w.Drafters {
		all = append(all, runner.Worker{Role: runner.Drafter, Rank: runner.Rank(i)})
	}
	return all
}
