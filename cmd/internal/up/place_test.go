package up

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
)

// decisionOf gives who made the newest decision of a kind.
func decisionOf(s admin.Status, what string) admin.Decision {
	if i := slices.IndexFunc(s.Decisions, func(d admin.Decision) bool { return d.What == what }); i >= 0 {
		return s.Decisions[i]
	}
	return admin.Decision{}
}

// events gives the run's events of a name.
func eventsOf(t *testing.T, u *up, name string) (all []string) {
	t.Helper()
	b, err := os.ReadFile(u.dir.join("events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var e struct{ Event, Message string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event == name {
			all = append(all, e.Message)
		}
	}
	return all
}

var threeGPUs = []string{"workers.device=cuda", "arenas.kind=memfd", "drafter.attention=sdpa", "workers.drafters=1", "workers.turns=0", "failure.release=0s"}

// TestPluginPlaces: workers are where the plugin has them, as processes, in
// status and in the manifest; a resume that places otherwise says so.
func TestPluginPlaces(t *testing.T) {
	b := newBench(t)
	smi(t, 3, 1)
	f, u := b.run("run", false, func(u *up) {
		if _, ok := atStep(u, 2); ok {
			u.stop(false, "signal terminated")
		}
	}, append(threeGPUs, plugs(t, "good", "workers.targets=1")...)...)
	if f.Code != runner.ExitStopped {
		t.Fatalf("finish %+v, %+v", f, u.last.Failures)
	}
	s := u.Status()
	for i, device := range []string{"GPU-0002", "GPU-0000"} { // GPU 1 is used by others
		if w := s.Workers[i]; w.Device != device {
			t.Errorf("%s is on %s, want %s", w.Name, w.Device, device)
		}
	}
	if got := certificate(t, u, "target-0").Environment["CUDA_VISIBLE_DEVICES"]; got != "GPU-0002" {
		t.Errorf("the target sees %s", got)
	}
	if d := decisionOf(s, decidedPlace); d.By != "plugged" || d.Detail != "target/0 on GPU 2, drafter/0 on GPU 0" || len(s.Degraded) != 0 {
		t.Errorf("decided %+v, degraded %+v", d, s.Degraded)
	}
	m, err := os.ReadFile(u.dir.join("manifest.json"))
	if err != nil || !strings.Contains(string(m), `"target/0": "GPU-0002"`) || !strings.Contains(string(m), `"drafter/0": "GPU-0000"`) {
		t.Errorf("manifest %s, %v", m, err)
	}
	f, u = b.run("run", true, nil, threeGPUs...)
	if f.Code != runner.ExitDone {
		t.Errorf("finish %+v", f)
	}
	if said := eventsOf(t, u, "placed otherwise"); len(said) != 1 || !strings.Contains(said[0], "target/0 was on GPU-0002, is on GPU-0000") {
		t.Errorf("said %v", said)
	}
	if d := decisionOf(u.Status(), decidedPlace); d.By != decidedBuiltin {
		t.Errorf("decided %+v", d)
	}
}

// TestBadPlacement: a bad, late or missing answer leaves workers where the
// built-in has them; that is said, and the run is whole. On a CPU the plugin is
// asked as well.
func TestBadPlacement(t *testing.T) {
	for which, says := range map[string]string{
		"lost": "unknown device \"GPU-moon\"",
		"slow": "no answer within",
		"ends": "",
	} {
		t.Run(which, func(t *testing.T) {
			b := newBench(t)
			f, u := b.run("run", false, nil, plugs(t, which)...)
			b.check(f, u)
			s := u.Status()
			if d := decisionOf(s, decidedPlace); d.By != decidedBuiltin || !strings.Contains(d.Detail, "drafter/1 on cpu") {
				t.Errorf("decided %+v", d)
			}
			if !slices.ContainsFunc(s.Degraded, func(r admin.Reason) bool {
				return r.Name == schedulerSubject && strings.Contains(r.Detail, "does not place: ") && strings.Contains(r.Detail, says)
			}) {
				t.Errorf("degraded %+v, want %q", s.Degraded, says)
			}
		})
	}
}

// TestPlaceRequest: what may not be used is not offered, and what is known of
// the rest is told.
func TestPlaceRequest(t *testing.T) {
	smi(t, 3, 1)
	u := onGPU(t, "arenas.kind=memfd")
	if err := u.preflight(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask := func() scheduler.PlaceRequest {
		t.Helper()
		by, err := u.placing()
		if err != nil {
			t.Fatal(err)
		}
		return by.Request()
	}
	q := ask()
	if len(q.Devices) != 2 || !q.Colocate || len(q.Needs) != 2 || q.Needs[0].MemoryBytes != u.plan.Workers[0].MemoryBytes || q.Needs[0].MemoryBytes == 0 {
		t.Fatalf("asked %+v", q)
	}
	d := q.Devices[1]
	if d.ID != "GPU-0002" || d.Name != "NVIDIA H200" || d.MemoryBytes != 143771<<20 || d.FreeBytes != 143771<<20 || d.Health != "unknown" || len(d.Links) != 1 || d.Links[0].ID != "GPU-0000" || !d.Links[0].Peer {
		t.Errorf("device %+v", d)
	}
	u.has.Links.NoPeer = [][2]string{{"GPU-0000", "GPU-0002"}}
	if q := ask(); q.Devices[0].Links[0].Peer || q.Devices[1].Links[0].Peer {
		t.Errorf("links %+v, want none of peers", q.Devices)
	}
	if q.Needs[0].RowMS != nil || q.Needs[1].RowMS != nil {
		t.Errorf("needs %+v: nothing was measured", q.Needs)
	}
	u.config.Costs.TargetRow, u.config.Costs.DrafterRow = config.Duration(30*time.Millisecond), config.Duration(70*time.Millisecond)
	if q := ask(); *q.Needs[0].RowMS != 30 || *q.Needs[1].RowMS != 70 {
		t.Errorf("rows of %g and %g ms, want the configuration's", *q.Needs[0].RowMS, *q.Needs[1].RowMS)
	}
	u.config.Costs = config.Costs{From: filepath.Join(t.TempDir(), "none.json")}
	if _, err := u.placing(); err == nil || !strings.Contains(err.Error(), "costs.from: open") {
		t.Errorf("costs that are not there: %v", err)
	}
	if got := moves(map[string]string{"target/0": "cpu", "drafter/0": "a"}, map[string]string{"target/0": "cpu", "drafter/0": "b", "drafter/1": "c"}); got != "drafter/0 was on a, is on b" {
		t.Errorf("moves: %s", got)
	}
}

// TestSpares: where a worker of each role could go, by what keeps it from there.
func TestSpares(t *testing.T) {
	smi(t, 4, 1)
	u := onGPU(t, "workers.turns=2", "arenas.kind=memfd")
	if err := u.preflight(t.Context()); err != nil {
		t.Fatal(err)
	}
	const all = "map[drafter:[GPU-0000 GPU-0002 GPU-0003] target:[GPU-0000 GPU-0002 GPU-0003]]" // GPU 1 is used by others
	for _, c := range []struct {
		name   string
		change func(u *up)
		want   string
	}{
		{"free ones", func(*up) {}, all},
		{"no peers, through host memory", func(u *up) { u.has.Links.NoPeer = [][2]string{{"GPU-0000", "GPU-0003"}} }, all},
		{"rows on the target's GPU", func(u *up) { u.plan.Arenas.Kind = runner.ArenaCUDA }, "map[drafter:[GPU-0000 GPU-0002 GPU-0003]]"},
		{"rows on a GPU that one does not reach", func(u *up) {
			u.plan.Arenas.Kind, u.has.Links.NoPeer = runner.ArenaCUDA, [][2]string{{"GPU-0003", "GPU-0000"}}
		}, "map[drafter:[GPU-0000 GPU-0002]]"},
		{"another kind of GPU", func(u *up) { u.has.GPUs[2].Name = "NVIDIA L4" }, "map[drafter:[GPU-0000 GPU-0002] target:[GPU-0000 GPU-0002]]"},
		{"one that is too small", func(u *up) { u.has.GPUs[2].Bytes = 1 << 20 }, "map[drafter:[GPU-0000 GPU-0002] target:[GPU-0000 GPU-0002]]"},
		{"a CPU", func(u *up) { u.config.Workers.Device = "cpu" }, "map[]"},
	} {
		settings := *u.config
		v := &up{plan: u.plan, has: u.has, gpus: u.gpus, config: &settings}
		v.has.GPUs = slices.Clone(u.has.GPUs)
		c.change(v)
		by, turns := v.spares()
		if got := fmt.Sprint(by); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		for _, device := range by[runner.Drafter] {
			if turns[device] != 2 {
				t.Errorf("%s: %s has %d turns", c.name, device, turns[device])
			}
		}
	}
}

// TestLossesOfManySources: a status shows the first of them, and how many there are.
func TestLossesOfManySources(t *testing.T) {
	many := make([]string, shownSources+5)
	got := lossesOf(many, []core.SourceLoss{{Source: 1, Loss: 2}, {Source: shownSources + 1, Loss: 3}})
	if len(got) != shownSources || got[0].Loss != nil || got[1].Loss == nil || *got[1].Loss != 2 {
		t.Errorf("got %d, %+v", len(got), got[:2])
	}
}

// TestBuiltinIsNamed: as the configuration chooses it; beside a plugin, balanced.
func TestBuiltinIsNamed(t *testing.T) {
	for use, want := range map[string]string{"balanced": "balanced", "fixed": "fixed", "plugged": "balanced"} {
		c := &config.Config{Scheduler: config.Scheduler{Use: use}}
		if got := builtinFor(c, drive.Fixed{}).Name(); got != want {
			t.Errorf("scheduler.use %s: got %s, want %s", use, got, want)
		}
	}
}
