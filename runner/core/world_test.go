package core

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// The world is an abstract model of everything around the core: drive, the
// workers' processes, the lane, the journal's disk, checkpoints. It keeps the
// rules of proto/lane.md, and notes in bad whatever breaks an invariant.

// t0 is the only time there is in a search: nothing may depend on it.
var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// ask is an order on its way to, or in, a worker.
type ask struct {
	seq   uint64
	order runner.Order
	image ImageID
	value string // of an image whose copy was taken
	chain runner.Chain
}

// proc is one process: there is one a worker, of its newest life.
type proc struct {
	life      runner.Life
	device    string
	up        bool // a process is there, dead or alive
	dead      bool // and dead, or dying; not reaped
	warming   bool
	certified bool
	main      []ask // worked off in order
	fast      []ask // pull and abort: taken at once; and images whose copy was taken
	comm      runner.Communicator
	reduced   runner.Communicator // it finished its share of the step in this one
	at        runner.Step
	value     string // its parameters: every batch ever applied, in order
	chain     runner.Chain
	batch     string // what the open step's gradient is made of
	buffers   [2]buffer
	plain     bool
}

// content is what lies in a slot or an image.
type content struct {
	row     runner.Row
	version runner.Version
}

type picture struct {
	id      ImageID
	step    runner.Step
	value   string
	chain   runner.Chain
	written bool
}

// touch is a lease that a process may still act on, whatever the core thinks.
type touch struct {
	life runner.Life
	at   runner.Slot
}

// share says that a rank contributed to a sum before it died.
type share struct {
	comm runner.Communicator
	rank runner.Rank
}

type world struct {
	setup      *setup
	core       *Core
	procs      []proc
	memory     map[runner.Slot]content
	held       map[runner.Arena]bool // descriptors of arenas that drive keeps
	offered    runner.Arena          // came with the reply that is being handled
	touches    []touch
	pictures   []picture
	disk       []picture // published
	sending    ImageID   // being published
	journal    []runner.Record
	base       int   // records of earlier supervisor lives
	durable    int   // of this life's
	syncing    []int // syncs under way: how many records each makes durable
	shares     []share
	applied    []string // by step: the batch that it was first applied with
	crashes    int      // of workers, left
	outages    int      // of the supervisor, left
	lives      int      // of the supervisor so far
	stops      int      // graceful stops, left
	verdicts   int      // about deaths, left
	judging    []Judge  // deaths that were asked about; a verdict may come of each at any time
	ending     bool     // the run was being ended before the input that is worked off
	stopped    bool     // a verdict or a barred device may have ended the run
	bars       int      // devices that may be barred, left
	slotBytes  uint64   // what targets say
	now        time.Time
	finished   *Finish
	bad        string
	clock      *time.Duration // time spent in the core, where somebody asks
	after      func([]Action) // told of every input's actions, once they are carried out
	slowMemory bool           // images are only made when the test says so
	noMemory   bool           // for images
	choice     *runner.Worker // the scheduler's, whatever is free
	anyEnd     bool           // any exit code will do: the test looks at it itself
	inputs     []Input        // to be handled
	trace      []string
	acts       []Action // what the core wanted done, in order
	events     []runner.Event
}

// setup is what a search varies.
type setup struct {
	targets, drafters, micros, steps int
	slots                            uint32
	turns                            int  // of the one device; 0: one device a worker
	pairs                            bool // target and drafter of a rank share a device of one turn
	imageEvery, checkpoint           runner.Step
	evaluation                       Evaluation
	budget                           int
	ask                              bool
	ahead                            int             // steps' rows below which samples are arranged
	poison                           []runner.Sample // their rows' losses are not finite
	stops                            int
	spares                           int           // devices without a worker
	bars                             int           // devices that are barred
	verdicts                         int           // that a plugin gives, some late, some twice
	backoff                          time.Duration // before a restart: time passes
	patient                          bool          // no verdict ends the run
	tune                             func(*Config)
	creating                         bool // targets make their arenas
	silent                           bool // some deaths close no lane before they are reaped
	fragile                          bool // workers apply at their own vote: what rule 3 forbids
	without                          protections
	verbose                          bool

	takes [2]time.Duration // what rows and micro-steps are known to take from the start, where time stands still
}

// simple is a planner of rows of one sample each, in the order they were fed.
type simple struct {
	ranks, micros, steps int
	fed                  []runner.Sample
	next                 int
}

func (p *simple) perStep() int { return p.ranks * p.micros }
func (p *simple) Wanted() (uint32, int) {
	if left := p.perStep()*p.steps - len(p.fed); left > 0 {
		return 1, left
	}
	return 2, 1
}
func (p *simple) Horizon(int) int { return p.perStep() }
func (p *simple) Ready() int      { return (len(p.fed) - p.next) / p.perStep() }
func (p *simple) Feed(epoch uint32, s []runner.Sample) error {
	if epoch != 1 || len(s) == 0 || len(p.fed)+len(s) > p.perStep()*p.steps {
		return fmt.Errorf("feed %v to epoch %d after %d", s, epoch, p.fed)
	}
	p.fed = append(slices.Clip(p.fed), s...)
	return nil
}
func (p *simple) Next() (rows.Step, bool) {
	if len(p.fed)-p.next < p.perStep() {
		return rows.Step{}, false
	}
	s := rows.Step{Plan: runner.StepPlan{Step: runner.Step(p.next/p.perStep() + 1), Epoch: 1, LR: 0.5, Rows: make([][]runner.Row, p.ranks)}}
	for i := range p.perStep() {
		row := runner.Row(p.next + i + 1)
		s.Rows = append(s.Rows, runner.RowPlan{Row: row, Epoch: 1, Bucket: 8, Pieces: []runner.Piece{{Sample: p.fed[row-1], Tokens: 8, Anchors: 1}}})
		s.Plan.Rows[i%p.ranks] = append(s.Plan.Rows[i%p.ranks], row)
	}
	p.next += p.perStep()
	return s, true
}

func (s *setup) config(r *Resume) Config {
	cfg := Config{Devices: map[string]int{}, GateWidth: 1, Slots: s.slots, Epochs: 1, HorizonSteps: 1, NonFinite: 3, KeepLast: 2,
		Planner:    &simple{ranks: s.drafters, micros: s.micros, steps: s.steps},
		ImageEvery: s.imageEvery, Checkpoint: s.checkpoint, Evaluation: s.evaluation, AskScheduler: s.ask,
		ArrangeAhead: s.ahead, Restart: Restart{Budget: s.budget, Base: s.backoff}, AskVerdicts: s.verdicts > 0, Resume: r, without: s.without, SourceOf: parity}
	for i := range s.targets + s.drafters {
		w := runner.Worker{Role: runner.Target, Rank: runner.Rank(i)}
		if i >= s.targets {
			w = runner.Worker{Role: runner.Drafter, Rank: runner.Rank(i - s.targets)}
		}
		device := "cpu"
		switch {
		case s.pairs:
			device = fmt.Sprintf("gpu%d", w.Rank)
		case s.turns == 0:
			device = w.String()
		}
		cfg.Workers = append(cfg.Workers, Worker{w, device})
		cfg.Devices[device] = max(1, s.turns)
	}
	for i := range s.spares {
		device := fmt.Sprintf("spare%d", i)
		cfg.Devices[device] = max(1, s.turns)
		for _, role := range []runner.Role{runner.Target, runner.Drafter} {
			if cfg.Spares == nil {
				cfg.Spares = map[runner.Role][]string{}
			}
			cfg.Spares[role] = append(cfg.Spares[role], device)
		}
	}
	if s.creating {
		cfg.ArenaKind = runner.ArenaCUDA
	}
	if s.tune != nil {
		s.tune(&cfg)
	}
	return cfg
}

// parity is where a sample of the model comes from.
func parity(s runner.Sample) int { return int(s) % 2 }

// newWorld starts a run.
func newWorld(s *setup, crashes, outages int) *world {
	w := &world{setup: s, memory: map[runner.Slot]content{}, crashes: crashes, outages: outages, stops: s.stops, verdicts: s.verdicts, bars: s.bars, now: t0, slotBytes: 64, applied: make([]string, s.steps+1)}
	w.start(nil)
	return w
}

// start begins a supervisor's life.
func (w *world) start(r *Resume) {
	c, err := New(w.setup.config(r))
	if err != nil {
		w.fault("new core: %v", err)
		return
	}
	w.lives++
	w.core, w.procs = c, make([]proc, len(c.workers))
	for i := range c.workers {
		x := &c.workers[i]
		takes, tokens := w.setup.takes[0], 8
		if x.id.Role == runner.Drafter {
			takes, tokens = w.setup.takes[1], 1
		}
		x.lately.Add(tokens, takes*time.Duration(2+i%3))
	}
	w.memory, w.touches, w.pictures, w.sending, w.shares = map[runner.Slot]content{}, nil, nil, 0, nil
	w.held, w.offered = map[runner.Arena]bool{}, 0
	w.base, w.durable, w.syncing, w.inputs, w.judging = len(w.journal), 0, nil, nil, nil
	w.give(Begin{})
}

func (w *world) fault(format string, a ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, a...)
	}
}

func (w *world) note(format string, a ...any) {
	if w.setup.verbose {
		w.trace = append(w.trace, fmt.Sprintf(format, a...))
	}
}

// give feeds inputs to the core until nothing is answered at once.
func (w *world) give(in ...Input) {
	w.inputs = append(w.inputs, in...)
	for len(w.inputs) > 0 && w.bad == "" {
		next := w.inputs[0]
		w.inputs = w.inputs[1:]
		w.note("  -> %T%+v", next, next)
		func() {
			defer func() {
				if p := recover(); p != nil {
					w.fault("panic: %v", p)
				}
			}()
			w.offered = offeredBy(next)
			w.ending = w.core.end.on
			begun := time.Now()
			as := w.core.Handle(w.now, next)
			if w.clock != nil {
				*w.clock += time.Since(begun)
			}
			for _, a := range as {
				w.act(a)
			}
			if w.after != nil {
				w.after(as)
			}
			w.remembered()
			if c := w.core; !c.end.finished {
				if first := c.earliest(); !first.IsZero() && (c.wake.IsZero() || c.wake.After(first)) {
					w.fault("something is due at %v, and the tick asked for is at %v", first, c.wake)
				}
			}
		}()
	}
	w.inputs = nil
}

// remembered checks what the core keeps in mind against what it can look up.
func (w *world) remembered() {
	c, ready := w.core, 0
	for i := range c.workers {
		k := &c.workers[i]
		if k.life.State == life.Ready {
			ready++
		}
		if c.find(k.current()) != k || c.devices[k.on] != (device{k.device, c.cfg.Devices[k.device]}) {
			w.fault("%v is found at %p for %p, on %+v for %s", k.current(), c.find(k.current()), k, c.devices[k.on], k.device)
		}
	}
	if ready != c.ready {
		w.fault("%d workers are ready, counted as %d", ready, c.ready)
	}
	var now outlook
	if c.idle.known && (c.idle.row != now.of(c).row || c.idle.step != now.step || !slices.Equal(c.idle.makers, now.makers)) {
		w.fault("idle targets have %+v before them, remembered as %+v", now, c.idle)
	}
	if !c.end.finished && c.prepareEach() {
		w.fault("an arena was left to map")
	}
}

// offeredBy gives the arena whose descriptor comes with an input, or 0.
func offeredBy(in Input) runner.Arena {
	if r, ok := in.(Replied); ok {
		if c, ok := r.Reply.(runner.Created); ok {
			return c.Arena
		}
	}
	return 0
}

func (w *world) later(in Input) { w.inputs = append(w.inputs, in) }

func (w *world) proc(l runner.Life) *proc {
	for i := range w.procs {
		if w.core.workers[i].id == l.Worker {
			if p := &w.procs[i]; p.up && p.life == l {
				return p
			}
		}
	}
	return nil
}

// act carries an action out as drive would.
func (w *world) act(a Action) {
	if w.setup.verbose {
		w.acts = append(w.acts, a)
	}
	w.note("     %T%+v", a, a)
	switch a := a.(type) {
	case Launch:
		w.launch(a.Life, a.Device)
	case WarmUp:
		w.warmUp(a.Life)
	case Send:
		w.sent(a)
	case Kill:
		if p := w.proc(a.Life); p == nil {
			w.fault("kill of %v, which is not there", a.Life)
		} else {
			w.die(p)
		}
	case MakeArena:
		if w.setup.creating {
			w.fault("arena %d is made here, though targets create", a.Arena)
		}
		w.held[a.Arena] = true
		w.later(ArenaMade{Arena: a.Arena, Kind: "memfd"})
	case HoldArena:
		if a.Arena != w.offered || w.held[a.Arena] {
			w.fault("arena %d is to be kept, where %d came and held is %v", a.Arena, w.offered, w.held)
		}
		w.held[a.Arena] = true
	case MakeImage:
		if w.noMemory {
			w.later(ImageFailed{Image: a.Image, Err: errors.New("no memory")})
			return
		}
		w.pictures = append(w.pictures, picture{id: a.Image, step: a.Step})
		if !w.slowMemory {
			w.later(ImageMade{Image: a.Image})
		}
	case OpenImage:
		w.open(a)
	case DropImage:
		w.pictures = slices.DeleteFunc(w.pictures, func(p picture) bool { return p.id == a.Image })
	case Publish:
		w.published(a)
	case Unpublish:
		w.disk = slices.DeleteFunc(w.disk, func(p picture) bool { return nameOf(p.step) == a.Name })
	case Append:
		if int(a.Number) != len(w.journal)-w.base+1 {
			w.fault("record %d comes after %d", a.Number, len(w.journal)-w.base)
		}
		if n := len(w.journal); n > w.base {
			if _, ended := w.journal[n-1].(runner.EndRecord); ended {
				w.fault("a %T comes after the end's record", a.Record)
			}
		}
		w.journal = append(w.journal, a.Record)
		w.settledOnce()
	case Sync:
		w.syncing = append(slices.Clip(w.syncing), len(w.journal)-w.base)
	case Arrange:
		w.arrange(a)
	case Assign:
		target := a.Free[len(a.Free)-1]
		if w.choice != nil {
			target = *w.choice
		}
		w.later(Assigned{Row: a.Row.Row, Target: target})
	case Judge:
		w.asks(a)
	case Finish:
		w.finish(a)
	case Emit:
		w.events = append(w.events, a.Event)
	}
}

// arrange gives the next samples; a later life of the supervisor has a
// scheduler of another mind, which turns them around.
func (w *world) arrange(a Arrange) {
	fed := len(w.core.planner.(*simple).fed)
	s := make([]runner.Sample, a.Count)
	for i := range s {
		s[i] = runner.Sample(fed + i)
	}
	if w.lives > 1 {
		slices.Reverse(s)
	}
	w.later(Arranged{Epoch: a.Epoch, Samples: s})
}

func (w *world) launch(l runner.Life, device string) {
	w.placed(l, device)
	for i := range w.procs {
		if w.core.workers[i].id == l.Worker {
			if w.procs[i].up {
				w.fault("I8: %v is launched while %v was not reaped", l, w.procs[i].life)
			}
			w.procs[i] = proc{life: l, up: true, device: device}
		}
	}
	in := Launched{Life: l, SlotBytes: w.slotBytes}
	if l.Worker.Role == runner.Drafter {
		in = Launched{Life: l, ImageBytes: 128, Parameters: digest("")}
	}
	w.later(in)
}

// warmUp checks I2: a place at the gate is free only once its last holder is
// certified or reaped.
func (w *world) warmUp(l runner.Life) {
	for i := range w.procs {
		if p := &w.procs[i]; p.up && p.warming {
			w.fault("I2: %v warms up while %v does", l, p.life)
		}
	}
	if p := w.proc(l); p == nil {
		w.fault("warm-up of %v, which is not there", l)
	} else {
		p.warming = true
	}
}

// die ends a process; it is reaped later, and until then its leases count.
func (w *world) die(p *proc) {
	p.dead, p.main, p.fast = true, nil, nil
}

// reap is told to the core once the process is really gone.
func (w *world) reap(p *proc) {
	l := p.life
	*p = proc{}
	w.touches = slices.DeleteFunc(w.touches, func(t touch) bool { return t.life == l })
	w.give(Exited{Life: l, Failure: &runner.Failure{Worker: l.Worker, Generation: l.Generation, Cause: runner.CauseSignal}})
}

func (w *world) open(a OpenImage) {
	for _, p := range w.disk {
		if nameOf(p.step) == a.Name {
			p.id = a.Image
			w.pictures = append(w.pictures, p)
			w.later(ImageMade{Image: a.Image})
			return
		}
	}
	w.later(ImageFailed{Image: a.Image, Err: errors.New("it is not there")})
}

// published checks rule 7: what is on the disk is explained by what is durable.
func (w *world) published(a Publish) {
	if w.sending != 0 {
		w.fault("a second checkpoint is published at once")
	}
	w.sending = a.Image
}

func (w *world) finish(a Finish) {
	w.finished = &a
	for i := range w.procs {
		if w.procs[i].up {
			w.fault("I8: finished while %v was not reaped", w.procs[i].life)
		}
	}
	if w.durable != len(w.journal)-w.base {
		w.fault("finished with %d of %d records durable", w.durable, len(w.journal)-w.base)
	}
}

func nameOf(n runner.Step) string { return fmt.Sprintf("step-%d", n) }

func digest(value string) runner.Digest { return sha256.Sum256([]byte(value)) }

// pictureOf gives an image's content by number.
func (w *world) pictureOf(id ImageID) *picture {
	for i := range w.pictures {
		if w.pictures[i].id == id {
			return &w.pictures[i]
		}
	}
	return nil
}

// alive reports whether a worker's process works orders off.
func (p *proc) alive() bool { return p.up && !p.dead }
