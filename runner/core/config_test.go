package core

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		spoil func(*Config)
		want  string
	}{
		{func(c *Config) { c.Workers[1].Worker.Rank = 1 }, "want rank 0 of role drafter, got 1"},
		{func(c *Config) { c.Spares = map[runner.Role][]string{runner.Drafter: {"moon"}} }, `check spares: drafter[0]: device "moon": want at least one turn`},
		{func(c *Config) { c.Devices = nil }, `device "target/0": want at least one turn`},
		{func(c *Config) { c.Workers = c.Workers[:1] }, "want a target and a drafter, got 1 and 0"},
		{func(c *Config) { c.GateWidth = 0 }, "width: want at least 1"},
		{func(c *Config) { c.Slots = 0 }, "slots: want at least 1"},
		{func(c *Config) { c.ArenaKind = "file" }, `kind: want memfd or cuda_vmm, got "file"`},
		{func(c *Config) { c.Planner = nil }, "planner"},
		{func(c *Config) { c.Epochs = 0 }, "want steps or epochs above 0"},
		{func(c *Config) { c.NonFinite = 0 }, "non-finite votes of at least 1"},
		{func(c *Config) { c.Evaluation = Evaluation{Prompts: 1, PromptChunk: 1} }, "chunks and new tokens above 0"},
	} {
		cfg := (&setup{targets: 1, drafters: 1, micros: 1, steps: 1, slots: 1}).config(nil)
		c.spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), c.want) || runner.KindOf(err) != runner.Invalid {
			t.Errorf("got %v, want an invalid configuration: %s", err, c.want)
		}
	}
}

// Samples that are never planned are settled once, with their reason, before
// anything is arranged; a resumed run does not settle them again.
func TestExcludedSamplesAreSettledOnce(t *testing.T) {
	s := setup{targets: 1, drafters: 1, micros: 1, steps: 2, slots: 1, checkpoint: 1, budget: 9, verbose: true}
	s.tune = func(c *Config) {
		c.Excluded = []rows.Exclusion{{Sample: 7, Reason: rows.ReasonNoAnchor}, {Sample: 9, Reason: rows.ReasonNoAnchor}}
	}
	x := stage(t, s, func(w *world) bool { return len(w.disk) == 1 })
	r := x.leave()
	r.Excluded = true
	x.start(r)
	if f := x.over(); f.Code != runner.ExitDone {
		t.Fatalf("finished with %+v", f)
	}
	n := 0
	for i, rec := range x.journal {
		if e, ok := rec.(runner.ExcludeRecord); ok {
			n++
			if i != 1 || len(e.Samples) != 2 || e.Reason != rows.ReasonNoAnchor {
				t.Errorf("record %d is %+v", i, e)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d records exclude samples, want 1", n)
	}
}

// The scheduler chooses among free targets; a choice that is not free any
// more, or never was, is not followed.
func TestAssign(t *testing.T) {
	s := setup{targets: 2, drafters: 1, micros: 2, steps: 6, slots: 2, turns: 1, ask: true, budget: 9}
	for _, c := range []struct {
		name   string
		choice runner.Worker
		ranks  []runner.Rank // of the targets that may get the row
	}{
		{"the second", runner.Worker{Role: runner.Target, Rank: 1}, []runner.Rank{1}},
		{"one that is not there", runner.Worker{Role: runner.Target, Rank: 5}, []runner.Rank{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := stage(t, s, func(*world) bool { return true })
			x.choice = &c.choice
			x.lastFirst = true // so that both targets are free at some time
			x.until(func(w *world) bool { return w.core.assign.target == c.choice })
			row := x.core.assign.row
			n := count(x, func(s Send) bool {
				p, ok := s.Order.(runner.Produce)
				for _, r := range c.ranks {
					if ok && p.Row == row && s.Life.Worker.Rank == r {
						return true
					}
				}
				return false
			})
			if n != 1 {
				t.Errorf("row %d was ordered %d times of targets %v, want once", row, n, c.ranks)
			}
			if f := x.over(); f.Code != runner.ExitDone || x.bad != "" {
				t.Errorf("finished with %+v %s", f, x.bad)
			}
		})
	}
}

// What is not the scheduler's to give ends the run.
func TestBadSamplesEndTheRun(t *testing.T) {
	x := stage(t, setup{targets: 1, drafters: 1, micros: 1, steps: 2, slots: 1, budget: 9}, func(*world) bool { return true })
	x.core.asked = true
	x.give(Arranged{Epoch: 4, Samples: []runner.Sample{0}})
	if f := x.over(); f.Code != runner.ExitFailed || !strings.Contains(f.Reason, "arrange samples") {
		t.Errorf("finished with %+v", f)
	}
}

func TestView(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 3, slots: 2, imageEvery: 1, budget: 9}
	x := stage(t, s, func(w *world) bool { return w.procs[0].warming })
	v := x.core.View()
	if v.Gate.Width != 1 || len(v.Gate.Holders) != 1 || len(v.Gate.Queue) != 2 || v.Workers[0].State != "warming" || v.Workers[1].State != "waiting" {
		t.Errorf("in warm-up: gate %+v, workers %+v", v.Gate, v.Workers)
	}
	x.until(func(w *world) bool { return w.core.decided == 2 && holding(1, is[runner.Commit])(w) })
	v = x.core.View()
	if v.Step != 2 || v.Epoch != 1 || v.Rows != 4 || v.Tokens != 32 || v.Samples != 4 || v.LossFirst != 1.5 || v.LossLast != 3.5 || v.Phase != "committing" {
		t.Errorf("at step 2: %+v", v)
	}
	if w := v.Workers[1]; w.State != "ready" || w.Order != "commit" || !w.HasState || !w.Certified {
		t.Errorf("drafter/0 is %+v", w)
	}
	if a := v.Arenas[0]; a.HandOffs < 4 || len(a.Slots) != 2 || a.Kind != "memfd" || a.SlotBytes != 64 {
		t.Errorf("arena %+v", a)
	}
	x.crashed(&x.procs[2], false)
	if d := x.core.View().Degraded; len(d) != 1 || d[0] != "drafter/1 is being replaced" {
		t.Errorf("degraded for %q", d)
	}
	x.give(StopRequested{Quick: true, Reason: "a signal"})
	if d := x.core.View().Degraded; len(d) != 0 {
		t.Errorf("nobody is replaced while the run ends, but it is degraded for %q", d)
	}
}

// A clone goes its own way: what the search rests on.
func TestCloneIsApart(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 2, steps: 3, slots: 2, imageEvery: 1, checkpoint: 1, budget: 9,
		evaluation: Evaluation{Every: 1, AtStart: true, Heldout: 2, HeldoutChunk: 1}}
	w := newWorld(&s, 0, 0)
	for n := 0; w.finished == nil; n++ {
		before := w.key()
		c := w.clone()
		c.crashes = 1
		for i := 0; i < 40 && c.finished == nil && c.bad == ""; i++ {
			ms := c.moves()
			c.apply1(ms[(n+i)%len(ms)])
		}
		if w.key() != before {
			t.Fatalf("after %d moves: what happened to the clone changed the original", n)
		}
		w.apply1(w.moves()[0])
	}
}
