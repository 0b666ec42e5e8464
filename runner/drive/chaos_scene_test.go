package drive_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// scene is a run that a seed makes: who works, on what, and how it is saved.
type scene struct {
	seed     uint64
	index    *rows.Index
	rows     rows.Config
	core     core.Config
	poison   runner.Sample // whose loss is not a number, plus one; 0: there is none
	targets  int
	drafters int
	aim      *cell // that the history is about; nil: none
	plugin   bool  // a plugin decides
	pool     int   // that it is shown
}

func (s scene) String() string {
	c := s.core
	return fmt.Sprintf("%d targets, %d drafters, %d samples, %d rows a step, %d slots of %q, gate %d, placed %v, turns %v, spares %v, horizon %d, images every %d, checkpoints every %d, %d kept, evaluation %+v, poison %d, plugin %v",
		s.targets, s.drafters, len(s.index.Samples), s.rows.RowsPerStep, c.Slots, c.ArenaKind, c.GateWidth, c.Workers, c.Devices, c.Spares, c.HorizonSteps, c.ImageEvery, c.Checkpoint, c.KeepLast, c.Evaluation, s.poison, s.plugin)
}

// random gives numbers that the seed and the names decide, whoever asks first.
func (s scene) random(names ...any) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, names...) // a hash takes everything
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

// newScene draws a run of few steps.
func newScene(seed uint64) scene {
	s := scene{seed: seed, index: &rows.Index{Sources: []string{"chaos"}}}
	r := s.random("scene")
	s.targets, s.drafters = 1+r.IntN(3), 1+r.IntN(3)
	if n := seed & aimMask; n > 0 {
		a := cells()[(n-1)%uint64(len(cells()))]
		s.aim, s.targets, s.drafters = &a, 3, 2+r.IntN(2)
	}
	for range 16 + r.IntN(28) {
		n := uint32(6 + r.IntN(20))
		s.index.Samples = append(s.index.Samples, rows.SampleInfo{Tokens: n, Supervised: n / 2, Anchors: n/2 - 1})
	}
	s.index.Samples[r.IntN(len(s.index.Samples))].Anchors = 0 // never planned
	if r.IntN(3) == 0 {
		s.poison = 1 + runner.Sample(r.IntN(len(s.index.Samples)))
	}
	s.rows = rows.Config{Buckets: [][]uint32{{64}, {32, 64}}[r.IntN(2)], Anchors: 16, RowsPerStep: s.drafters * (1 + r.IntN(3)),
		Drafters: s.drafters, Draws: 1 + uint32(r.IntN(2)), Schedule: rows.Schedule{Peak: 1e-3, Total: 12}}
	s.core = core.Config{GateWidth: 1 + r.IntN(2), Slots: 2 + uint32(r.IntN(3)), Epochs: 2, HorizonSteps: 1 + r.IntN(3),
		ArenaKind:  []string{runner.ArenaMemfd, runner.ArenaCUDA}[r.IntN(2)],
		ImageEvery: 1 + runner.Step(r.IntN(3)), Checkpoint: runner.Step(r.IntN(4)), KeepLast: 1 + r.IntN(3), ForgetBest: r.IntN(2) == 0,
		NonFinite: 5, AskScheduler: r.IntN(2) == 0,
		Restart: core.Restart{Budget: 1000, Base: 5 * time.Millisecond, Cap: 40 * time.Millisecond}, Deadlines: core.Deadlines{Stop: 30 * time.Second}}
	for _, d := range []*time.Duration{&s.core.Deadlines.Launch, &s.core.Deadlines.WarmUp, &s.core.Deadlines.Order, &s.core.Deadlines.Step,
		&s.core.Deadlines.Abort, &s.core.Deadlines.Image, &s.core.Deadlines.Evaluate, &s.core.Deadlines.Drain} {
		*d = 400 * time.Millisecond
	}
	if r.IntN(3) > 0 {
		s.core.Evaluation = core.Evaluation{Every: runner.Step(r.IntN(3)), AtStart: r.IntN(2) == 0, AtEnd: true, Heldout: 4, HeldoutChunk: 2,
			Prompts: uint32(r.IntN(2) * 3), PromptChunk: 2, NewTokens: 8}
	}
	s.place(r)
	if r := s.random("plugin"); r.IntN(3) == 0 {
		s.plugin, s.pool, s.core.ArrangeAhead, s.core.AskScheduler = true, 1+r.IntN(60), r.IntN(4), true
		s.placed(r)
	}
	if s.aim != nil {
		s.core.GateWidth = 1
		s.stretch(&s.core.Restart.Base, "backoff", "")
	}
	return s
}

// aimMask are the bits of a seed that name the cell that its history is about,
// from 1; 0: none.
const aimMask = 1<<10 - 1

// stretch makes something take longer where it is what keeps a worker in the
// state, or the drafters in the phase, that the history is about.
func (s *scene) stretch(d *time.Duration, state, phase string) {
	if a := s.aim; a != nil && (state != "" && stateNames[a.state] == state || phase != "" && phaseNames[a.phase] == phase) {
		*d += 40 * time.Millisecond
	}
}

// orderPhases are the states and phases that orders keep workers in.
var orderPhases = map[string][2]string{"arena": {"certified", ""}, "drain": {"draining", ""}, "join": {"", "joining"}, "commit": {"", "committing"}, "abort": {"", "aborting"},
	"launch": {"launching", ""}, "warm up": {"warming", ""}}

// place puts the workers on one device or two.
func (s *scene) place(r *rand.Rand) {
	devices := []string{"a", "b"}[:1+r.IntN(2)]
	s.core.Devices = map[string]int{}
	for _, d := range devices {
		s.core.Devices[d] = 1 + r.IntN(3)
	}
	add := func(role runner.Role, n int) {
		for i := range n {
			s.core.Workers = append(s.core.Workers, core.Worker{Worker: runner.Worker{Role: role, Rank: runner.Rank(i)}, Device: devices[i%len(devices)]})
		}
	}
	add(runner.Target, s.targets)
	add(runner.Drafter, s.drafters)
}

// placed is what a plugin may answer about places: workers share devices, some
// devices have none. It is asked before the loop is there, so the scene is its
// answer. It judges deaths, and may move a worker to a device that has none.
func (s *scene) placed(r *rand.Rand) {
	devices := []string{"a", "b", "c", "d", "e"}[:1+r.IntN(5)]
	for _, d := range devices {
		s.core.Devices[d] = 1 + r.IntN(3)
	}
	for i := range s.core.Workers {
		s.core.Workers[i].Device = devices[r.IntN(len(devices))]
	}
	s.core.AskVerdicts, s.core.Spares = true, map[runner.Role][]string{runner.Drafter: devices}
	if s.core.ArenaKind == runner.ArenaMemfd { // else a target's rows lie on its device
		s.core.Spares[runner.Target] = devices
	}
}

// crowded is a device that has more workers than it may: those that it began
// with, or one that was moved there.
func (s scene) crowded(v core.View) string {
	most, now := map[string]int{}, map[string]int{}
	for _, w := range s.core.Workers {
		most[w.Device]++
	}
	for _, w := range v.Workers {
		if now[w.Device]++; now[w.Device] > max(most[w.Device], 1) {
			return w.Device
		}
	}
	return ""
}

// upTo draws a time shorter than d.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
