// Package core decides everything that a run does: one pure function from
// inputs to actions over the machines of life, gate, lease and step. It has a
// single writer, starts no goroutine, reads no clock and does no I/O, so a
// failing history replays exactly.
//
// An input first changes facts; then the rules in pump look at the facts, one
// after another, until none has anything left to do. A rule asks what is
// true now, never what has just happened, so it does not matter in which
// order replies, deaths and timers arrive.
package core

import (
	"maps"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/gate"
	"github.com/dflash-runner/dflash-runner/runner/lease"
	"github.com/dflash-runner/dflash-runner/runner/step"
)

// Core is the state of a run. It is not for concurrent use.
type Core struct {
	cfg *Config // never changed after New
	now time.Time
	out []Action

	workers []worker
	ready   int   // so many of them are
	targets []int // indices into workers, by rank
	ranks   []int // likewise, drafters
	devices []device
	gate    gate.Gate
	ledger  lease.Ledger
	step    step.Step

	lineage      runner.Lineage
	communicator runner.Communicator
	decided      runner.Step  // newest decided step
	chain        runner.Chain // after it
	planner      Planner
	plans        []plan // by step, without a gap
	planned      runner.Step
	asked        bool // an Arrange is out
	exhausted    bool // no plan comes after the last one
	assign       assignment

	journal  journal
	images   []image
	imageIDs ImageID
	noImage  runner.Step // an image of this step could not be made; ^0: none
	restore  restoring
	disk     []checkpoint
	publish  publishing
	evals    []evaluation
	end      ending
	reaped   uint64    // deaths and ends so far
	fallen   fallen    // in the present communicator, first
	repeats  []repeat  // deaths that a restart may not help, bounded
	barred   []barred  // devices that are not used again
	grants   uint64    // turns given so far; of those alike, the least recently served is next
	wake     time.Time // the Tick that is asked for; zero: none
	soonest  time.Time // deadline of the orders sent since setWake looked; zero: none
	idle     outlook   // of idle targets; holds until something changes
	desk     desk
	figures  figures
}

// journal numbers records and knows how far they are durable.
type journal struct {
	number  uint64 // of the last record appended
	asked   uint64 // a Sync that covers so much is out
	durable uint64
	barrier uint64 // nothing is ordered before so much is durable
	commit  uint64 // the record of the newest decided step
	failed  bool
}

// none is no step: what a step is compared with where there is none.
const none = ^runner.Step(0)

// New checks the configuration and gives a core that waits for Begin.
func New(cfg Config) (*Core, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c := &Core{cfg: &cfg, planner: cfg.Planner, lineage: 1, noImage: none}
	c.gate.Width = cfg.GateWidth
	for _, name := range slices.Sorted(maps.Keys(cfg.Devices)) {
		c.devices = append(c.devices, device{name, cfg.Devices[name]})
	}
	for i, w := range cfg.Workers {
		c.workers = append(c.workers, worker{id: w.Worker, device: w.Device, on: c.deviceOf(w.Device)})
		if w.Worker.Role == runner.Drafter {
			c.ranks = append(c.ranks, i)
		} else {
			c.targets = append(c.targets, i)
		}
	}
	c.step.Ranks = make([]step.Rank, len(c.ranks))
	if cfg.Resume != nil {
		if err := c.resume(cfg.Resume); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Handle takes one input, which arrived at now, and gives what is to be done,
// in order. After Finish it gives nothing.
func (c *Core) Handle(now time.Time, in Input) []Action {
	if c.end.finished {
		return nil
	}
	c.account(now)
	c.now, c.out = now, nil
	c.take(in)
	c.pump()
	return c.out
}

// take turns an input into facts.
func (c *Core) take(in Input) {
	switch in := in.(type) {
	case Begin:
		c.begin()
	case Launched:
		c.launched(in)
	case Certified:
		c.certified(in)
	case Unfit:
		c.unfit(in)
	case DeviceUnfit:
		c.deviceUnfit(in)
	case LaneClosed:
		c.laneClosed(in)
	case Exited:
		c.exited(in)
	case Replied:
		c.replied(in)
	case ArenaMade:
		c.arenaMade(in)
	case ArenaFailed:
		c.finish(runner.ExitFailed, "make arena: "+in.Err.Error(), true)
	case ImageMade:
		c.imageMade(in)
	case ImageFailed:
		c.imageFailed(in)
	case Durable:
		c.journal.durable = max(c.journal.durable, in.UpTo)
	case JournalFailed:
		c.journal.failed = true
		c.finish(runner.ExitFailed, "write journal: "+in.Err.Error(), true)
	case Arranged:
		c.arranged(in)
	case Assigned:
		c.assigned(in)
	case Verdict:
		c.verdict(in)
	case Published:
		c.published(in)
	case CheckpointRequested:
		c.publish.asked = c.decided + 1
	case StopRequested:
		c.stopRequested(in)
	case Suspended:
		c.suspended()
	case Tick:
		c.wake = time.Time{}
	}
}

// pump applies the rules until none acts. Their order is that of urgency.
func (c *Core) pump() {
	for range 10_000 {
		c.idle.known = false
		if !c.expire() && !c.restart() && !c.prepare() && !c.recovering() && !c.load() && !c.join() &&
			!c.judge() && !c.imaging() && !c.checkpointing() && !c.evaluating() &&
			!c.planning() && !c.pulling() && !c.turns() && !c.closing() {
			c.setWake()
			return
		}
	}
	panic("core: the rules do not come to rest") // a bug: better found than spun on
}

func (c *Core) do(a Action) {
	if c.out == nil {
		c.out = make([]Action, 0, 4)
	}
	c.out = append(c.out, a)
}

// append adds a record to the journal and gives its number.
func (c *Core) append(r runner.Record) uint64 {
	c.journal.number++
	c.do(Append{Number: c.journal.number, Record: r})
	return c.journal.number
}

// sync asks that the journal be durable up to a record, once.
func (c *Core) sync(number uint64) {
	if number > c.journal.durable && number > c.journal.asked && !c.journal.failed {
		c.journal.asked = c.journal.number
		c.do(Sync{})
	}
}

// held reports whether orders must wait for the journal.
func (c *Core) held() bool { return c.journal.durable < c.journal.barrier }

func (c *Core) begin() {
	old := runner.Lineage(0)
	if r := c.cfg.Resume; r != nil {
		old = r.Lineage
	}
	c.append(runner.StartRecord{Manifest: c.cfg.Manifest, Lineage: old})
	if r := c.cfg.Resume; (r == nil || !r.Excluded) && len(c.cfg.Excluded) > 0 {
		c.exclude()
	}
	c.recordAdopted()
	c.sync(c.journal.number)
	for i := range c.workers {
		c.startLife(&c.workers[i])
	}
}

// exclude settles the samples that are never planned, one record a reason.
func (c *Core) exclude() {
	var reasons []string
	by := map[string][]runner.Sample{}
	for _, e := range c.cfg.Excluded {
		if by[e.Reason] == nil {
			reasons = append(reasons, e.Reason)
		}
		by[e.Reason] = append(by[e.Reason], e.Sample)
	}
	for _, r := range reasons {
		c.append(runner.ExcludeRecord{Samples: by[r], Reason: r})
		c.figures.skipped += uint64(len(by[r]))
		c.emit(runner.Event{Level: runner.Warn, Name: "samples excluded", Message: r, Figures: map[string]float64{"samples": float64(len(by[r]))}})
	}
}

func (c *Core) emit(e runner.Event) {
	e.At = c.now
	c.do(Emit{Event: e})
}

// of makes an event about a worker.
func of(w *worker, level runner.Level, name, message string) runner.Event {
	id := w.id
	return runner.Event{Level: level, Name: name, Worker: &id, Generation: w.life.Generation, Message: message}
}
