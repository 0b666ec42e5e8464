package up

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/drive/drivetest"
)

// TestPluginMovesAWorker: the next life of a dead drafter sees the free GPU that
// the plugin chose, and the run is whole. It dies wherever else it runs: where the
// answer comes after a backoff, there is a longer one.
func TestPluginMovesAWorker(t *testing.T) {
	b := newBench(t)
	smi(t, 4)
	t.Setenv(faultVariable, "but on GPU-0000")
	set := append(slices.Clone(threeGPUs), "workers.drafters=2", "failure.restarts=10", "failure.backoff_min=200ms", "failure.backoff_max=1m")
	f, u := b.run("run", false, nil, append(set, plugs(t, "mover", "workers.targets=1")...)...)
	b.check(f, u)
	s := u.Status()
	i := slices.IndexFunc(s.Workers, func(w admin.WorkerStatus) bool { return w.Name.String() == "drafter/1" })
	if w := s.Workers[i]; w.Device != "GPU-0000" || w.Generation < 2 { // target/0, drafter/0 and drafter/1 were put on 3, 2 and 1
		t.Errorf("drafter/1 is %+v, want a later life on GPU-0000", w)
	} else if d := decisionOf(s, decidedVerdict); d.By != "plugged" || d.Detail != fmt.Sprintf("drafter/1.%d: replace on GPU 0: signal", w.Generation-1) {
		t.Errorf("decided %+v", d)
	}
	if s.Plugin.Refused != 0 {
		t.Errorf("plugin %+v", s.Plugin)
	}
}

// TestVerdictsOnACPU: a stop ends the run after a checkpoint, for the plugin's
// reason; a replacement is a bad answer, as there is nowhere to go; a plugin that
// thinks too long leaves the death to the policy.
func TestVerdictsOnACPU(t *testing.T) {
	t.Setenv(faultVariable, string(drivetest.Die))
	for which, says := range map[string]string{"stopper": "", "mover": "want another device that works, got \"GPU-none\"", "dreamer": "-"} {
		t.Run(which, func(t *testing.T) {
			b := newBench(t)
			f, u := b.run("run", false, nil, append(plugs(t, which), "scheduler.deadline=30s")...)
			s := u.Status()
			d := decisionOf(s, decidedVerdict)
			if says == "" {
				if f.Code != runner.ExitFailed || !strings.HasSuffix(f.Reason, "drafter/1.1 died, and the scheduling plugin ends the run: drafter/1 died 1 of 8 times") {
					t.Errorf("finish %+v", f)
				}
				if s.Checkpoint == nil || s.Checkpoint.Step != u.final.Step || d.By != "plugged" || !strings.Contains(d.Detail, "drafter/1.1: stop: ") {
					t.Errorf("at step %d: checkpoint %+v, decided %+v", u.final.Step, s.Checkpoint, d)
				}
				return
			}
			b.check(f, u)
			if d.By != decidedBuiltin || d.Detail != "drafter/1.1: restart, by the restart policy" {
				t.Errorf("decided %+v", d)
			}
			if says == "-" { // it thinks until the run is over, which nothing waits for
				return
			}
			if s.Plugin.Refused == 0 || !slices.ContainsFunc(s.Degraded, func(r admin.Reason) bool {
				return r.Name == schedulerSubject && strings.Contains(r.Detail, says)
			}) {
				t.Errorf("plugin %+v, degraded %+v", s.Plugin, s.Degraded)
			}
		})
	}
}
