package core

import (
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/lease"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// View is a copy of what people may see of a run. Changing it changes nothing.
type View struct {
	Step         runner.Step // newest decided
	Steps        runner.Step // last of the run; 0: not known yet
	Epoch        uint32
	Lineage      runner.Lineage
	Communicator runner.Communicator
	Chain        runner.Chain // after Step
	Phase        string       // of the drafters together
	Rows         uint64       // committed in the surviving lineage, as the next three
	Samples      uint64
	Tokens       uint64
	Skipped      uint64
	Trained      bool // the losses are set
	LossFirst    float64
	LossLast     float64
	Losses       []SourceLoss // recent, by source
	Workers      []WorkerView
	Gate         GateView
	Arenas       []ArenaView
	Images       []ImageView
	Checkpoints  []runner.CheckpointRecord
	Evaluations  []runner.EvaluationRecord
	Moments      Moments
	Stalls       Stalls
	Verdicts     Verdicts
	Failures     []runner.Failure
	Degraded     []string
	Restored     Restored // the newest of this life; of lineage 0: none
	Ending       bool
	Finished     bool
	Code         int
	Reason       string
}

// Restored is how a restore, or a resume, went on.
type Restored struct {
	Lineage runner.Lineage // that begins with it
	Step    runner.Step    // whose state was restored
	Undone  runner.Step    // so many decided steps are trained again
}

// WorkerView is one worker.
type WorkerView struct {
	Worker      runner.Worker
	Device      string
	State       string
	Generation  runner.Generation
	Since       time.Time // of the state, or of the order where there is one
	Order       string    // the oldest not answered; empty: idle
	Step        runner.Step
	HasState    bool
	Strikes     int
	Usage       Usage // of training's time
	Done        Done  // in that time
	Certified   bool
	Certificate runner.Certificate
}

// GateView is the warm-up gate.
type GateView struct {
	Width      int
	Holders    []runner.Life
	Queue      []Waiting
	MaxHolders int
	Sequence   []runner.Life
}

// Waiting is a life in the queue.
type Waiting struct {
	Life  runner.Life
	Since time.Time
}

// ArenaView is one target's slots.
type ArenaView struct {
	Arena     runner.Arena
	Worker    runner.Worker
	Kind      string
	SlotBytes uint64
	HandOffs  uint64
	Slots     []SlotView
}

// SlotView is one slot. Holder is zero where it is free or full.
type SlotView struct {
	State   string
	Version runner.Version
	Row     runner.Row
	Holder  runner.Life
}

// ImageView is one image in memory.
type ImageView struct {
	Image ImageID
	Step  runner.Step
	Valid bool
}

// View gives a plain snapshot for status.
func (c *Core) View() View {
	f := &c.figures
	v := View{Step: c.decided, Steps: c.limit(), Lineage: c.lineage, Communicator: c.communicator, Chain: c.chain, Phase: c.step.Phase.String(),
		Rows: f.total.rows, Samples: f.total.samples, Tokens: f.total.tokens, Skipped: f.skipped, Trained: f.trained, LossFirst: f.lossFirst, LossLast: f.lossLast, Losses: f.losses.all(),
		Evaluations: slices.Clone(f.scores), Moments: c.moments(), Stalls: f.stalls, Verdicts: f.verdicts, Failures: slices.Clone(f.failures), Degraded: c.degraded(), Restored: f.restored,
		Ending: c.end.on, Finished: c.end.finished, Code: c.end.code, Reason: c.end.reason}
	if p := c.planOf(max(1, c.decided)); p != nil {
		v.Epoch = p.Plan.Epoch
	}
	v.Workers = make([]WorkerView, len(c.workers))
	for i := range c.workers {
		c.workers[i].view(&v.Workers[i])
	}
	v.Gate = GateView{Width: c.gate.Width, MaxHolders: c.gate.Max, Sequence: slices.Clone(c.gate.Sequence)}
	for _, h := range c.gate.Holders {
		v.Gate.Holders = append(v.Gate.Holders, h.Life)
	}
	for _, q := range c.gate.Queue {
		v.Gate.Queue = append(v.Gate.Queue, Waiting(q))
	}
	v.Arenas = make([]ArenaView, len(c.ledger.Arenas))
	for i := range c.ledger.Arenas {
		v.Arenas[i] = arenaView(&c.ledger.Arenas[i], f.arenas[i])
	}
	for _, im := range c.images {
		v.Images = append(v.Images, ImageView{im.id, im.step, im.state == valid})
	}
	for _, d := range c.disk {
		if d.Step > 0 { // else a stray one
			v.Checkpoints = append(v.Checkpoints, d.CheckpointRecord)
		}
	}
	return v
}

func (w *worker) view(v *WorkerView) {
	*v = WorkerView{Worker: w.id, Device: w.device, State: w.life.State.String(), Generation: w.life.Generation, Since: w.life.Since,
		Step: w.at, HasState: w.has, Strikes: w.life.Strikes, Usage: w.usage, Done: w.done, Certificate: w.certificate,
		Certified: w.life.State.Alive()}
	if len(w.orders) > 0 {
		o := w.first()
		v.Order, v.Since = runner.OrderType(o.order), o.sent
	}
}

func arenaView(a *lease.Arena, f arenaFigures) ArenaView {
	v := ArenaView{Arena: a.Arena, Worker: a.Owner, Kind: f.kind, SlotBytes: f.slotBytes, HandOffs: a.HandOffs, Slots: make([]SlotView, len(a.Slots))}
	for i := range a.Slots {
		s := &a.Slots[i]
		v.Slots[i] = SlotView{State: s.State.String(), Version: s.Version, Row: s.Row, Holder: s.Holder}
	}
	return v
}

// degraded gives the reasons why the run is less healthy than it should be.
func (c *Core) degraded() []string {
	why := slices.Clone(c.figures.degraded)
	if s := c.figures.spikes.shown(c.decided); s != "" {
		why = append(why, s)
	}
	for _, b := range c.barred {
		why = append(why, c.barredFor(b.device))
	}
	for i := range c.workers {
		switch w := &c.workers[i]; w.life.State {
		case life.Lost, life.Backoff:
			if c.needed(w) {
				why = append(why, w.id.String()+" is being replaced")
			}
		case life.Failed:
			why = append(why, w.id.String()+" failed for good")
		}
	}
	return why
}
