package up

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"time"

	"github.com/dflash-runner/dflash-runner/cmd/internal/plan"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/hang"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// schedulerSlack is how much longer the loop waits for a scheduler than the
// plugin's own deadline, which is to come first.
const schedulerSlack = time.Second

// train runs the loop over workers, arenas and journal to its end. It gives the
// newest checkpoint's image besides.
func (u *up) train(ctx context.Context, s *settings, data dataset) (core.Finish, string, error) {
	r, err := u.record(s, data)
	if err != nil {
		return core.Finish{}, "", err
	}
	defer u.closing("journal", r.journal.Close)
	if err := worker.BecomeSubreaper(); err != nil {
		return core.Finish{}, "", err
	}
	left, err := admin.RemoveLeft(u.dir.path)
	if err != nil {
		u.warn("sockets", err.Error()) // nothing of this life needs them gone
	}
	for _, path := range left {
		u.note("leftover removed", path+": sockets of an earlier supervisor of this run, which is dead")
	}
	sockets, release, err := admin.OwnedDirectory(u.dir.path)
	if err != nil {
		return core.Finish{}, "", err
	}
	defer u.closing("sockets", release) // every worker is reaped by then
	l, err := u.newLauncher(s, data, sockets)
	if err != nil {
		return core.Finish{}, "", err
	}
	images := image.NewAhead(plan.ImagesAtOnce)
	defer func() { u.closing("image made ahead", images.Close) }()
	d := u.driving(r.plan, l, r.store, r.journal, images, u.deciding(s, r.plan, r.manifest, r.resume))
	b := &budget{limit: u.config.Training.StopAfter, stop: func(reason string) { u.stop(false, reason) }}
	defer b.close()
	u.schedule(&d, r.plan)
	d.Observe = func(e runner.Event) {
		u.observe(e)
		u.meter.observe(e)
		b.observe(e)
	}
	loop, err := drive.New(d)
	if err != nil {
		return core.Finish{}, "", err
	}
	if u.options.Alone {
		defer r.store.processors.confine(len(d.Core.Workers))()
	}
	u.enter(loop, l, s, r)
	finish := loop.Run(ctx)
	u.leave(finish)
	newest := ""
	if c := r.store.last(); c != nil {
		newest = r.store.imagePath(c.name)
	}
	return finish, newest, nil
}

// closing closes something at the end; that it could not is a warning.
func (u *up) closing(subject string, f func() error) {
	if err := f(); err != nil {
		u.warn(subject, err.Error())
	}
}

// recorded is what a run is planned from, and what it writes: its files.
type recorded struct {
	plan     planned
	store    *store
	manifest runner.Digest
	journal  *journal.Writer
	resume   *core.Resume
}

// record plans the run and opens its files; the journal comes last, and is the
// caller's to close.
func (u *up) record(s *settings, data dataset) (r recorded, err error) {
	ix, err := readIndex(data.train)
	if err != nil {
		return r, err
	}
	if r.plan, err = u.planning(ix); err != nil {
		return r, err
	}
	if r.store, err = openStore(u.dir.join("checkpoints")); err != nil {
		return r, err
	}
	if r.manifest, err = u.writeManifest(s, ix, r.plan); err != nil {
		return r, err
	}
	r.journal, r.resume, err = u.openJournal(r.store)
	return r, err
}

// planned is what rows and steps are planned with.
type planned struct {
	planner *rows.Planner
	config  rows.Config
	steps   runner.Step // last of the run
	index   *rows.Index
}

// sourceOf gives the number of a sample's source; a sample that the index does
// not have, as the core is yet to say of a journal, has none.
func (p planned) sourceOf(s runner.Sample) int {
	if uint64(s) >= uint64(len(p.index.Samples)) {
		return -1
	}
	return int(p.index.Samples[s].Source)
}

// planning makes the planner, and settles how many steps the run has.
func (u *up) planning(ix *rows.Index) (planned, error) {
	t := u.config.Training
	c := rows.Config{Buckets: unsigned(t.Buckets), Anchors: uint32(t.Anchors), RowsPerStep: t.RowsPerStep, Drafters: int(u.config.Workers.Drafters), Draws: 1}
	total := uint64(t.Steps)
	if total == 0 {
		p, err := rows.NewPlanner(ix, c)
		if err != nil {
			return planned{}, err
		}
		if total, err = rows.CountSteps(ix, c, u.config.Run.Seed, uint32(t.Epochs), p.Horizon(t.HorizonSteps)); err != nil {
			return planned{}, err
		}
	}
	c.Schedule = rows.Schedule{Peak: t.LearningRate, Floor: t.FloorFraction, WarmUp: t.WarmupFraction, Total: total}
	p, err := rows.NewPlanner(ix, c)
	return planned{p, c, runner.Step(total), ix}, err
}

// deciding is the core's configuration.
func (u *up) deciding(s *settings, p planned, manifest runner.Digest, resume *core.Resume) core.Config {
	c := u.config
	k := core.Config{Devices: u.plan.Turns, GateWidth: c.WarmUp.Width, Slots: uint32(c.Workers.Slots), ArenaKind: u.plan.Arenas.Kind,
		Planner: p.planner, Steps: p.steps, HorizonSteps: c.Training.HorizonSteps, ImageEvery: runner.Step(c.Images.EverySteps),
		Checkpoint: runner.Step(c.Checkpoints.EverySteps), KeepLast: c.Checkpoints.KeepLast, ForgetBest: c.Checkpoints.KeepBest == 0, NonFinite: c.Failure.NonfiniteSteps,
		Spikes:   core.Spikes{Loss: c.Failure.LossSpike, Norm: c.Failure.NormSpike},
		SourceOf: p.sourceOf,
		Manifest: manifest, Excluded: p.planner.Excluded(), Resume: resume,
		Evaluation: core.Evaluation{Every: runner.Step(c.Checkpoints.EverySteps), AtStart: true, AtEnd: true,
			Heldout: uint32(c.Evaluate.HeldoutSamples), HeldoutChunk: heldoutChunk, Prompts: uint32(c.Evaluate.Prompts), PromptChunk: promptChunk, PromptsAtStart: promptsAtStart,
			NewTokens: uint32(c.Evaluate.NewTokens), DecodeEvery: runner.Step(c.Evaluate.EverySteps)},
		Restart: core.Restart{Budget: c.Failure.Restarts, Decay: c.Failure.Decay.D(), Base: c.Failure.BackoffMin.D(), Cap: c.Failure.BackoffMax.D(),
			Jitter: c.Failure.Jitter, Seed: c.Run.Seed, Never: c.Workers.OnFailure == "stop"},
		Deadlines: core.Deadlines{Launch: u.releaseLimit() + 2*c.Failure.Deadlines.Launch.D() + c.Failure.Deadlines.Configure.D() + warmUpSlack, WarmUp: c.WarmUp.Deadline.D() + warmUpSlack,
			Order: c.Failure.Deadlines.Order.D(), Step: c.Failure.Deadlines.Order.D(), Abort: c.Failure.Deadlines.Order.D(), Image: c.Failure.Deadlines.Order.D(),
			Evaluate: c.Failure.Deadlines.Order.D(), Drain: c.Failure.Deadlines.Drain.D(), Stop: c.Failure.Deadlines.Stop.D()},
	}
	for _, w := range u.plan.Workers {
		k.Workers = append(k.Workers, core.Worker{Worker: w.Name, Device: w.Device})
	}
	sortWorkers(k.Workers)
	return k
}

// Chunks bound how long one evaluate order takes; warmUpSlack lets the worker's
// own deadline, which brings its stacks along, come first.
const (
	heldoutChunk = 8
	promptChunk  = 4
	// The untrained drafter gains one token a forward on any prompt.
	promptsAtStart = 8
	warmUpSlack    = 30 * time.Second // also of the launch
)

// driving joins everything into a loop's configuration.
func (u *up) driving(p planned, l *launcher, st *store, j drive.Journal, images *image.Ahead, k core.Config) drive.Config {
	h := u.config.Failure.Hang
	builtin := builtinFor(u.config, drive.Fixed{Seed: u.config.Run.Seed, Samples: p.planner.Plannable(), Draws: p.config.Draws})
	return drive.Config{Core: k, Launcher: l, Builtin: builtin, Memory: memory{images}, Store: st, Journal: j,
		Observe: u.observe, Warming: u.warming, SchedulerDeadline: u.config.Scheduler.Deadline.D() + schedulerSlack, Hang: hang.Limits{Heartbeat: h.Heartbeat.D(), WarmUp: h.WarmUp.D(), Order: h.Order.D()},
		Plannable: p.planner.Plannable(), Draws: p.config.Draws}
}

// schedule has the plugin asked, where there is one.
func (u *up) schedule(d *drive.Config, p planned) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.plugin == nil {
		return
	}
	d.Scheduler = &consulted{plugin: u.plugin, answers: &u.answers, index: p.index, total: len(d.Plannable) * int(d.Draws), devices: u.devicesNow}
	d.Core.AskScheduler = u.plugin.Can(scheduler.Assign)
	d.Core.ArrangeAhead = max(1, d.Core.HorizonSteps/4)
	d.Pool = u.config.Scheduler.Pool
	if d.Core.AskVerdicts = u.plugin.Can(scheduler.OnFailure); d.Core.AskVerdicts {
		d.Core.Spares, d.Core.Devices = u.spares()
	}
}

// newLauncher makes what starts workers, with a nonce of its own.
func (u *up) newLauncher(s *settings, data dataset, runtime string) (*launcher, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, runner.Errorf(runner.Internal, "make nonce: %w", err)
	}
	return &launcher{u: u, settings: s, data: data, nonce: hex.EncodeToString(b[:]), runtime: runtime, lives: map[runner.Worker]*process{}, ended: map[runner.Worker]ended{}}, nil
}

// enter makes the loop reachable for status and signals; a stop that came
// before it is passed on.
func (u *up) enter(loop *drive.Loop, l *launcher, s *settings, r recorded) {
	u.mu.Lock()
	u.loop, u.launcher, u.settings, u.store, u.sources = loop, l, s, r.store, r.plan.index.Sources
	why, quick, unfit := u.stopping, u.quick, maps.Clone(u.unfit)
	u.mu.Unlock()
	for device, reason := range unfit {
		loop.Bar(device, reason)
	}
	if why != "" {
		loop.Stop(quick, why)
	}
	u.board.begin("launch")
	u.meter.enter(partLaunch)
}

// leave keeps the last picture of a loop that is over.
func (u *up) leave(f core.Finish) {
	u.meter.leave()
	u.refresh(context.Background())
	v, _ := u.loop.View(context.Background())
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended, u.final = &f, &v
	if f.Code == runner.ExitDone {
		u.state = admin.Finishing
	}
}
