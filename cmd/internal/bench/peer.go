package bench

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// trainers are those that python/bench/peer.py knows, by the names that their
// projects have.
var trainers = map[string]string{"specforge": "SpecForge", "deepspec": "DeepSpec"}

// Peer is another trainer, and how its step is measured beside ours.
type Peer struct {
	Trainer     string // specforge or deepspec
	Checkout    string // a directory with its sources, which are run as they are
	Interpreter string // of its process; empty: ours
	Rows        int    // timed by each process
	Batch       int    // rows of its step
	Rounds      int    // processes of each, in alternation
	FSDP        bool   // wrapped as it ships
	Compile     bool   // as a whole, where its configurations ask for that
	Deadline    time.Duration
}

// Check refuses what cannot be measured.
func (p Peer) Check(cuda bool) error {
	names := strings.Join(slices.Sorted(maps.Keys(trainers)), " or ")
	switch {
	case trainers[p.Trainer] == "":
		return runner.Errorf(runner.Invalid, "bench peer: --trainer: want %s, got %q", names, p.Trainer)
	case p.Checkout == "":
		return runner.Errorf(runner.Invalid, "bench peer: --checkout: want a directory with the sources of %s, got none", trainers[p.Trainer])
	case p.Batch < 1 || p.Rows < 1 || p.Rows%p.Batch != 0:
		return runner.Errorf(runner.Invalid, "bench peer: --rows: want a multiple of --batch, at least 1, got %d and %d", p.Rows, p.Batch)
	case p.Rounds < 1 || p.Rounds > 20:
		return runner.Errorf(runner.Invalid, "bench peer: --rounds: want 1 to 20, got %d", p.Rounds)
	case p.Deadline < time.Second:
		return runner.Errorf(runner.Invalid, "bench peer: --deadline: want at least 1s, got %s", p.Deadline)
	case p.FSDP && !cuda:
		return runner.Errorf(runner.Invalid, "bench peer: --fsdp: want a GPU, got a CPU, for which torch has no FSDP")
	case p.Compile && p.Trainer != "deepspec":
		return runner.Errorf(runner.Invalid, "bench peer: --compile: want --trainer deepspec, got %s, which compiles its attention by itself", p.Trainer)
	}
	return nil
}

// peerAsked is a question to peer.py.
type peerAsked struct {
	asked
	Trainer  string `json:"trainer"`
	Checkout string `json:"checkout"`
	Batch    int    `json:"batch"`
	FSDP     bool   `json:"fsdp"`
	Compile  bool   `json:"compile"`
}

// peerSteps is what peer.py answers.
type peerSteps struct {
	about
	Transformers string
	BuildS       float64           `json:"build_s"`
	FirstS       float64           `json:"first_s"`
	StepMS       float64           `json:"step_ms"`  // of steps that follow one another
	AloneMS      float64           `json:"alone_ms"` // of one by itself
	PeakBytes    uint64            `json:"peak_bytes"`
	Compiles     int               `json:"compiles"`    // in the timed steps that follow one another; -1: not known
	DenseCalls   int               `json:"dense_calls"` // of attention, in all steps; -1: not known
	Parts        map[string]string `json:"parts"`
}

// beside is a round: both, each measured alone.
type beside struct {
	ours   steps
	theirs peerSteps
}

// PeerBench measures our step, as StepBench does, and another trainer's on the
// same shape, random weights and random rows, each in processes of its own that
// take turns on one device. Each of the two has a compile cache of its own that
// is empty before its first process.
func PeerBench(ctx context.Context, p *Python, d Devices, shape Shape, peer Peer) (*Report, error) {
	if err := peer.Check(d.OnGPU()); err != nil {
		return nil, err
	}
	tree, err := look(ctx, peer.Checkout)
	if err != nil {
		return nil, err
	}
	interpreter := p.interpreter
	if peer.Interpreter != "" {
		if interpreter, err = exec.LookPath(peer.Interpreter); err != nil {
			return nil, runner.Errorf(runner.NotFound, "use interpreter of %s: %w", trainers[peer.Trainer], err)
		}
	}
	r := start("peer")
	r.on(d)
	about := asked{Shape: shape, Device: d.told(), Threads: d.threads(), Rows: peer.Rows}
	ours := question{name: "our step", interpreter: p.interpreter, script: "step.py", environment: p.peerEnvironment(d, "ours"), deadline: peer.Deadline, asked: about}
	theirs := question{name: trainers[peer.Trainer], interpreter: interpreter, script: "peer.py", environment: p.peerEnvironment(d, peer.Trainer), deadline: peer.Deadline,
		asked: peerAsked{asked: about, Trainer: peer.Trainer, Checkout: tree.Path, Batch: peer.Batch, FSDP: peer.FSDP, Compile: peer.Compile}}
	rounds := make([]beside, peer.Rounds)
	for i := range rounds {
		if err := p.turn(ctx, i, theirs, ours, &rounds[i]); err != nil {
			return nil, err
		}
	}
	shape.Rows = peer.Rows * peer.Rounds
	if err := r.peer(rounds, shape, peer, d.OnGPU()); err != nil {
		return nil, err
	}
	r.Facts["checkout"], r.Facts["checkout commit"], r.Facts["checkout state"] = tree.Path, tree.Commit, tree.State
	return r.done(), nil
}

// turn measures both once: the trainer first where nothing is known yet of
// whether it runs at all, and every second round the other way around.
func (p *Python) turn(ctx context.Context, i int, theirs, ours question, into *beside) error {
	first := func() error { return p.put(ctx, theirs, &into.theirs) }
	second := func() error { return p.put(ctx, ours, &into.ours) }
	if i%2 == 1 {
		first, second = second, first
	}
	if err := first(); err != nil {
		return err
	}
	return second()
}

// peerEnvironment is one side's, with a compile cache of its own.
func (p *Python) peerEnvironment(d Devices, side string) []string {
	cache := filepath.Join(p.dir, "cache", side)
	return p.on(d.place(0), d.threads(), compiling("TORCHINDUCTOR_CACHE_DIR="+filepath.Join(cache, "inductor"), "TRITON_CACHE_DIR="+filepath.Join(cache, "triton"),
		"WANDB_MODE=disabled")...)
}

// String is the peer's settings in words.
func (p Peer) String() string {
	text := fmt.Sprintf("%s, %d rows a step", trainers[p.Trainer], p.Batch)
	if p.FSDP {
		text += ", FSDP"
	}
	if p.Compile {
		text += ", compiled as a whole"
	}
	return text
}
