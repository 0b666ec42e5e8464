package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// A verdict about a death comes at any moment, late, twice or never, of a worker
// that waits, was started again, runs, or died again; and the run is the same.
func TestI5_I6_I8_I11_SearchVerdicts(t *testing.T) {
	s := setup{targets: 1, drafters: 2, micros: 1, steps: 2, slots: 1, imageEvery: 1, checkpoint: 1, budget: 9, spares: 1, verdicts: 2, backoff: time.Second}
	late := s
	late.backoff = 0 // the policy is always first
	stopped, resumed := s, s
	barred := s
	barred.steps, barred.verdicts, barred.bars = 1, 1, 1
	stopped.stops, stopped.steps, stopped.verdicts = 1, 1, 1
	resumed.steps, resumed.verdicts = 1, 1
	all(t, rowsEager,
		search{setup: s, crashes: 1, spared: runner.Target},
		search{setup: barred, crashes: 1, spared: runner.Target},
		search{setup: late, crashes: 1, spared: runner.Target},
		search{setup: stopped, crashes: 1, spared: runner.Target},
		search{setup: resumed, crashes: 1, outages: 1, spared: runner.Target},
	)
	all(t, stepsEager, search{setup: setup{targets: 2, drafters: 1, micros: 1, steps: 2, slots: 1, budget: 9, spares: 1, verdicts: 1, backoff: time.Second}, crashes: 2})
	all(t, nil, search{setup: setup{targets: 1, drafters: 1, micros: 1, steps: 1, slots: 1, budget: 9, spares: 1, verdicts: 2, backoff: time.Second}, crashes: 1})
}

// judgedRun is a run of which drafter/1 has died and waits.
func judgedRun(t *testing.T, tune func(*Config)) *scene {
	t.Helper()
	x := stage(t, setup{targets: 1, drafters: 2, micros: 1, steps: 4, slots: 2, imageEvery: 1, budget: 9, spares: 2, verdicts: 1, backoff: time.Second, tune: tune}, holding(2, lastTrain))
	x.die(&x.procs[2])
	x.give(LaneClosed{Life: x.procs[2].life})
	x.reap(&x.procs[2])
	return x
}

// TestVerdicts: what is taken, what is not, and what is told of it.
func TestVerdicts(t *testing.T) {
	drafter := runner.Worker{Role: runner.Drafter, Rank: 1}
	first := runner.Life{Worker: drafter, Generation: 1}
	for _, c := range []struct {
		name   string
		give   []Input
		late   bool // time passes first, and the policy has decided
		device string
		last   Judged
		taken  uint64
		event  string
	}{
		{"none: the policy goes on", nil, false, "drafter/1", Judged{first, VerdictRestart, "", "", true, time.Time{}}, 0, ""},
		{"restart", []Input{Verdict{first, VerdictRestart, "", "it may"}}, false, "drafter/1", Judged{first, VerdictRestart, "", "it may", false, time.Time{}}, 1, "drafter/1.1: restart: it may"},
		{"replace", []Input{Verdict{first, VerdictReplace, "spare1", ""}}, false, "spare1", Judged{first, VerdictReplace, "spare1", "", false, time.Time{}}, 1, "drafter/1.1: replace on spare1"},
		{"replace twice: the first counts", []Input{Verdict{first, VerdictReplace, "spare1", ""}, Verdict{first, VerdictReplace, "spare0", ""}}, false, "spare1", Judged{first, VerdictReplace, "spare1", "", false, time.Time{}}, 1, ""},
		{"replace by a device that has a worker", []Input{Verdict{first, VerdictReplace, "target/0", ""}}, false, "drafter/1", Judged{first, VerdictRestart, "", "", true, time.Time{}}, 0, "want a free device that works, got \"target/0\""},
		{"replace by a device that is barred meanwhile", []Input{DeviceUnfit{"spare1", "it is hot"}, Verdict{first, VerdictReplace, "spare1", ""}}, false, "drafter/1", Judged{first, VerdictRestart, "", "", true, time.Time{}}, 0, "want a free device that works"},
		{"replace too late", []Input{Verdict{first, VerdictReplace, "spare1", ""}}, true, "drafter/1", Judged{first, VerdictRestart, "", "", true, time.Time{}}, 0, "replace came after the restart policy had decided"},
		{"about another life", []Input{Verdict{runner.Life{Worker: drafter, Generation: 7}, VerdictStop, "", ""}}, false, "drafter/1", Judged{first, VerdictRestart, "", "", true, time.Time{}}, 0, ""},
		{"about nobody", []Input{Verdict{runner.Life{Worker: runner.Worker{Role: "cook"}, Generation: 1}, VerdictStop, "", ""}}, false, "drafter/1", Judged{first, VerdictRestart, "", "", true, time.Time{}}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := judgedRun(t, nil)
			if q := x.judging; len(q) != 1 || q[0].Life != first || q[0].Device != "drafter/1" || q[0].Deaths != 1 || q[0].Budget != 9 || !slices.Equal(q[0].Spares, []string{"spare0", "spare1"}) {
				t.Fatalf("asked %+v", q)
			}
			if c.late {
				x.world.pass(move{verb: wait})
			}
			x.give(c.give...)
			if f := x.over(); f.Code != runner.ExitDone {
				t.Fatalf("finish %+v", f)
			}
			if got := x.core.workers[2].device; got != c.device {
				t.Errorf("drafter/1 is on %s, want %s", got, c.device)
			}
			v := x.core.View().Verdicts
			v.Last.At = time.Time{}
			if v.Last != c.last || v.Asked != 1 || v.Taken != c.taken {
				t.Errorf("verdicts %+v, want %d taken, the last %+v", v, c.taken, c.last)
			}
			if !slices.ContainsFunc(x.events, func(e runner.Event) bool {
				return strings.HasPrefix(e.Name, "verdict") && strings.Contains(e.Message, c.event)
			}) && c.event != "" {
				t.Errorf("nothing was told of %q", c.event)
			}
		})
	}
}

// TestVerdictStops: also when the worker was started again; the state is saved,
// and the reason is the plugin's.
func TestVerdictStops(t *testing.T) {
	for _, late := range []bool{false, true} {
		x := judgedRun(t, nil)
		if late {
			x.world.pass(move{verb: wait})
		}
		decided := x.core.decided
		x.give(Verdict{Life: x.judging[0].Life, Decision: VerdictStop, Reason: "GPU 3 is not to be trusted"})
		f := x.over()
		if f.Code != runner.ExitFailed || f.Reason != "drafter/1.1 died, and the scheduling plugin ends the run: GPU 3 is not to be trusted" {
			t.Errorf("finish %+v", f)
		}
		if n := len(x.disk); decided > 0 && (n == 0 || x.disk[n-1].step < decided) {
			t.Errorf("step %d was decided, the disk holds %+v", decided, x.disk)
		}
	}
}

// TestVerdictOfABarredDevice: a worker whose device is barred has its backoff's
// time to be moved, and fails at its end, or at a verdict that leaves it there.
func TestVerdictOfABarredDevice(t *testing.T) {
	for _, c := range []struct {
		name    string
		verdict *Verdict
		code    int
	}{
		{"never", nil, runner.ExitFailed},
		{"moved", &Verdict{Decision: VerdictReplace, Device: "spare0"}, runner.ExitDone},
		{"left there", &Verdict{Decision: VerdictRestart}, runner.ExitFailed},
		{"moved to nowhere", &Verdict{Decision: VerdictReplace, Device: "moon"}, runner.ExitFailed},
	} {
		for _, before := range []bool{true, false} { // it is barred before the death, or after
			x := stage(t, setup{targets: 1, drafters: 2, micros: 1, steps: 4, slots: 2, imageEvery: 1, budget: 9, spares: 2, verdicts: 1, backoff: time.Second}, holding(2, lastTrain))
			if before {
				x.give(DeviceUnfit{"drafter/1", "it is hot"})
			}
			x.die(&x.procs[2])
			x.give(LaneClosed{Life: x.procs[2].life})
			x.reap(&x.procs[2])
			if !before {
				x.give(DeviceUnfit{"drafter/1", "it is hot"})
			}
			if len(x.judging) != 1 || x.core.workers[2].life.State != life.Backoff {
				t.Fatalf("%s: asked %+v, drafter/1 is %v", c.name, x.judging, x.core.workers[2].life.State)
			}
			if c.verdict != nil {
				c.verdict.Life = x.judging[0].Life
				x.give(*c.verdict)
			}
			if f := x.over(); f.Code != c.code || c.code != 0 && f.Reason != "drafter/1 cannot be started again: drafter/1 is not used again: it is hot" {
				t.Errorf("%s: finish %+v", c.name, f)
			}
		}
	}
}

// TestNotAsked: where the policy ends the run, or no plugin wants to know.
func TestNotAsked(t *testing.T) {
	for name, tune := range map[string]func(*Config){
		"nothing is started again": func(c *Config) { c.Restart.Never = true },
		"the budget is spent":      func(c *Config) { c.Restart.Budget = 0 },
		"nobody wants to":          func(c *Config) { c.AskVerdicts = false },
	} {
		if x := judgedRun(t, tune); len(x.judging) != 0 {
			t.Errorf("%s: asked %+v", name, x.judging)
		}
	}
}
