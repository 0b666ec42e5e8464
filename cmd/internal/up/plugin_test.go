package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// plugged is this binary as a scheduling plugin: a good one takes the pool from
// its end and the last free target; a moody one does anything.
type plugged struct{ which string }

func (plugged) Info() scheduler.Info {
	return scheduler.Info{Name: "plugged", Version: "0.1.0"}
}

func (plugged) Schema() []scheduler.Field {
	return []scheduler.Field{{Key: "depth", Type: scheduler.Int, Default: 1, Doc: "how deep"}}
}

func (plugged) Configure(context.Context, scheduler.Config) error { return nil }

func (p plugged) Arrange(ctx context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	slices.Reverse(q.Pool)
	out := scheduler.First(q)
	return out, p.mood(ctx, func() { out = out[1:] }, func() { out[0] = 4_000_000 }, func() { out[1] = out[0] })
}

// Place puts workers on devices from the last one on, each on another as long as
// there are some; where it is lost, on one that is not there.
func (p plugged) Place(ctx context.Context, q scheduler.PlaceRequest) ([]scheduler.Placement, error) {
	var out []scheduler.Placement
	for i, n := range q.Needs {
		out = append(out, scheduler.Placement{Worker: n.Worker, Device: q.Devices[len(q.Devices)-1-i%len(q.Devices)].ID})
	}
	switch p.which {
	case "lost":
		out[0].Device = "GPU-moon"
	case "slow":
		select {} // not even at the deadline, which the host's may come after
	case "ends":
		os.Exit(3)
	}
	return out, p.mood(ctx, func() { out = out[1:] }, func() { out[1] = out[0] })
}

// OnFailure moves a worker to the first device that is offered, or ends the run.
func (p plugged) OnFailure(ctx context.Context, q scheduler.FailureRequest) (scheduler.Verdict, error) {
	switch p.which {
	case "mover":
		v := scheduler.Verdict{Decision: scheduler.Replace, Device: "GPU-none", Reason: string(q.Cause)}
		if len(q.Devices) > 0 {
			v.Device = q.Devices[0].ID
		}
		return v, nil
	case "stopper":
		return scheduler.Verdict{Decision: scheduler.Stop, Reason: fmt.Sprintf("%s died %d of %d times", q.Worker, q.Deaths, q.Budget)}, nil
	case "dreamer":
		<-ctx.Done()
	}
	v := scheduler.Verdict{Decision: scheduler.Restart}
	return v, p.mood(ctx, func() { v.Decision = "bury" }, func() { v.Reason = "two\nlines" })
}

func (p plugged) Assign(ctx context.Context, q scheduler.AssignRequest) (runner.Worker, error) {
	w := q.Free[len(q.Free)-1]
	return w, p.mood(ctx, func() { w.Rank = 9 }, func() { w.Role = runner.Drafter })
}

// mood spoils most answers of a moody plugin, is late, or ends the process.
func (p plugged) mood(ctx context.Context, spoil ...func()) error {
	if p.which != "moody" {
		return nil
	}
	switch n := rand.IntN(len(spoil) + 4); n {
	case 0:
		if rand.IntN(4) == 0 { // it takes the whole deadline
			<-ctx.Done()
		}
	case 1:
		return scheduler.Errorf(runner.Unavailable, "not in the mood")
	case 2:
		if rand.IntN(3) == 0 {
			os.Exit(5)
		}
	case 3:
	default:
		spoil[n-4]()
	}
	return nil
}

// deadlines are those of plugins that are to miss them. Another one's is not for
// a busy machine to miss.
var deadlines = map[string]string{"moody": "1s", "slow": "1s"}

// plugs configures this binary as a plugin.
func plugs(t *testing.T, which string, more ...string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sum, err := host.Sum(self)
	if err != nil {
		t.Fatal(err)
	}
	deadline := cmp.Or(deadlines[which], "2m")
	return append([]string{"scheduler.use=plugged", "workers.targets=2", "scheduler.start=2m", "scheduler.deadline=" + deadline, "scheduler.backoff_min=20ms", "scheduler.backoff_max=100ms",
		fmt.Sprintf("scheduler.plugins=[{name: plugged, path: %q, sha256: %s, args: [plugin, %s]}]", self, sum, which)}, more...)
}

// TestHostingLimits: what the configuration lets a plugin hold is what the host
// ends it at.
func TestHostingLimits(t *testing.T) {
	c, err := config.Load("", []string{"scheduler.limits.memory=1GiB", "scheduler.limits.tasks=200"})
	if err != nil {
		t.Fatal(err)
	}
	if o := Hosting(c); o.Limits != (host.Limits{MemoryBytes: 1 << 30, Tasks: 200}) || o.Look <= 0 {
		t.Errorf("got %+v, a look every %s", o.Limits, o.Look)
	}
}

// orders reads which samples were arranged in each epoch.
func (b *bench) orders(name string) map[uint32][]runner.Sample {
	b.t.Helper()
	out := map[uint32][]runner.Sample{}
	if _, err := journal.Scan(filepath.Join(b.root, "runs", name, "journal"), func(e journal.Entry) error {
		if a, ok := e.Record.(runner.ArrangeRecord); ok {
			out[a.Epoch] = append(out[a.Epoch], a.Samples...)
		}
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return out
}

// TestPluginDecides: the order in the journal is the plugin's, and the run is
// whole and healthy.
func TestPluginDecides(t *testing.T) {
	b := newBench(t)
	b.run("plain", false, nil, "workers.targets=2")
	f, u := b.run("plugged", false, nil, plugs(t, "good")...)
	b.check(f, u)
	plain, got := b.orders("plain"), b.orders("plugged")
	for epoch, order := range plain {
		slices.Reverse(order)
		if !slices.Equal(got[epoch], order) {
			t.Errorf("epoch %d: got %v, want the built-in's order from its end, %v", epoch, got[epoch], order)
		}
	}
	s := u.Status()
	if len(s.Losses) != 1 || s.Losses[0].Source != "test" || s.Losses[0].Loss == nil || *s.Losses[0].Loss <= 0 {
		t.Errorf("losses %+v, want one of the only source", s.Losses)
	}
	for _, what := range []string{decidedPlace, decidedArrange} {
		if d := decisionOf(s, what); d.By != "plugged" || d.Detail == "" || d.At == nil {
			t.Errorf("%s is decided by %+v", what, d)
		}
	}
	if d := decisionOf(s, decidedVerdict); d.What != "" {
		t.Errorf("nobody died, and there is the verdict %+v", d)
	}
	if s.Plugin == nil || s.Plugin.Name != "plugged" || s.Plugin.Calls == 0 || s.Plugin.Refused != 0 || len(s.Degraded) != 0 || s.Scheduler != "plugged" {
		t.Errorf("status %+v, degraded %v", s.Plugin, s.Degraded)
	}
	p := u.summary(f, "").Plugin
	if p == nil || p.Name != "plugged" || p.Version != "0.1.0" || p.SHA256 != u.config.Scheduler.Plugins[0].SHA256 || p.Answers < 2 || p.Refused != 0 || p.Fallbacks != 0 || p.Samples == 0 || p.Moved == 0 || p.Moved > p.Samples {
		t.Errorf("summary %+v", p)
	}
}

// TestToldOfAnOrder: how it differs from the built-in's.
func TestToldOfAnOrder(t *testing.T) {
	var said string
	a := answers{note: func(name, message string) { said = name + ": " + message }}
	q := scheduler.ArrangeRequest{Epoch: 2, Count: 2, Left: 3, Total: 3, Sources: []scheduler.Source{{Name: "/d/chat.jsonl"}, {Name: "/d/code.jsonl"}},
		Pool: []scheduler.Candidate{{Sample: 7, Tokens: 30}, {Sample: 4, Tokens: 10, Source: 1}, {Sample: 5, Tokens: 8, Source: 1}}}
	a.arranged(q, []runner.Sample{5, 4})
	if want := "arranged: epoch 2: 2 samples, 1 elsewhere than the built-in has them; of 9 tokens on average, not 20; 0 of chat.jsonl, not 1; 2 of code.jsonl, not 1"; said != want {
		t.Errorf("want %q, got %q", want, said)
	}
	a.arranged(q, []runner.Sample{7, 4})
	if want := "arranged: epoch 2: 2 samples, 0 elsewhere than the built-in has them"; said != want {
		t.Errorf("want %q, got %q", want, said)
	}
	if a.samples.Load() != 4 || a.moved.Load() != 1 {
		t.Errorf("want 1 of 4 moved, got %d of %d", a.moved.Load(), a.samples.Load())
	}
}

// TestWhatIsGivenUpIsNoAnswer: nor does the built-in answer it.
func TestWhatIsGivenUpIsNoAnswer(t *testing.T) {
	a := consulted{answers: &answers{}}
	if err := a.declined(scheduler.Arrange, nil); err != nil {
		t.Error(err)
	}
	if err := a.declined(scheduler.Arrange, runner.Errorf(runner.Canceled, "the run ends")); !errors.Is(err, drive.ErrDeclined) {
		t.Errorf("got %v", err)
	}
	if used, fallbacks := a.answers.used.Load(), a.answers.fallbacks.Load(); used != 1 || fallbacks != 0 {
		t.Errorf("want one answer used and none given instead, got %d and %d", used, fallbacks)
	}
}

// TestQuestionTellsLosses: each source with its loss, where it has one.
func TestQuestionTellsLosses(t *testing.T) {
	a := consulted{total: 3, index: &rows.Index{Sources: []string{"chat", "code"}, Samples: []rows.SampleInfo{{Tokens: 5, Source: 1}, {Tokens: 6}, {Tokens: 7}}}}
	q := a.question(core.Arrange{Epoch: 2, Count: 9, Left: 2, Losses: []core.SourceLoss{{Source: 1, Loss: 2.5}}}, []runner.Sample{2, 0})
	if q.Epoch != 2 || q.Count != 2 || q.Left != 2 || q.Total != 3 || len(q.Sources) != 2 || q.Sources[0].Loss != nil || q.Sources[1].Loss == nil || *q.Sources[1].Loss != 2.5 {
		t.Errorf("asked %+v", q)
	}
	if want := []scheduler.Candidate{{Sample: 2, Tokens: 7}, {Sample: 0, Tokens: 5, Source: 1}}; !slices.Equal(q.Pool, want) {
		t.Errorf("pool %v, want %v", q.Pool, want)
	}
}

// TestI6_MoodyPlugin: a plugin that answers at random, late or not at all, and
// dies, changes nothing of what a run promises; status and health say so.
func TestI6_MoodyPlugin(t *testing.T) {
	b := newBench(t)
	f, u := b.run("moody", false, nil, plugs(t, "moody")...)
	b.check(f, u)
	s := u.Status()
	if s.Plugin == nil || s.Plugin.Refused == 0 && s.Plugin.Ends == 0 {
		t.Fatalf("status %+v: nothing was refused, so nothing was tested", s.Plugin)
	}
	if !slices.ContainsFunc(s.Degraded, func(r admin.Reason) bool { return r.Name == schedulerSubject }) {
		t.Errorf("degraded %v", s.Degraded)
	}
	if p := u.summary(f, "").Plugin; p == nil || p.Fallbacks == 0 {
		t.Errorf("summary %+v: want what the built-in answered", p)
	}
	t.Logf("%d calls, %d refused, %d ends, %d starts", s.Plugin.Calls, s.Plugin.Refused, s.Plugin.Ends, s.Plugin.Starts)
}

// TestRequiredPluginIsRefused: exit 3 before any worker, with the line of the
// configuration; without `required` the run goes on, degraded.
func TestRequiredPluginIsRefused(t *testing.T) {
	b := newBench(t)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(b.root, "cache"))
	base, err := os.ReadFile("../../../configs/cpu-test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sum, err := host.Sum(self)
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(filepath.Join(b.root, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	for _, c := range []struct {
		name, sum, config, says string
	}{
		{"sum", strings.Repeat("0", 64), "{}", "plugin plugged: check plugin file " + self + ": want sha256 0000"},
		{"key", sum, "\n        dept: 4", ": scheduler.plugins[0].config.dept: unknown key"},
		{"keys", sum, "\n        depth: deep\n        dept: 4", "keys.yaml:%d:16: scheduler.plugins[0].config.depth: want a whole number, got deep\nhint: how deep\nerror: " +
			filepath.Join(b.root, "keys.yaml") + ":%d:15: scheduler.plugins[0].config.dept: unknown key\nhint: the plugin's keys: depth\n"},
	} {
		file := filepath.Join(b.root, c.name+".yaml")
		text := string(base) + fmt.Sprintf("\nscheduler:\n  use: plugged\n  required: true\n  plugins:\n    - name: plugged\n      path: %s\n      sha256: %s\n      args: [plugin, good]\n      config: %s\n", self, c.sum, c.config)
		if n := strings.Count(text, "\n"); strings.Contains(c.says, "%d") { // the last two lines
			c.says = fmt.Sprintf(c.says, n-1, n)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := stderr.Truncate(0); err != nil {
			t.Fatal(err)
		}
		code := Run(t.Context(), Options{ConfigPath: file, Set: []string{"run.directory=" + filepath.Join(b.root, "runs")}, Stderr: stderr})
		said, err := os.ReadFile(stderr.Name())
		if err != nil || code != runner.ExitPreflight || !strings.Contains(string(said), c.says) || !strings.Contains(string(said), file+":") {
			t.Errorf("%s: exit %d, said %s, %v", c.name, code, said, err)
		}
	}
	f, u := b.run("alone", false, nil, append(plugs(t, "good"), "scheduler.plugins=[{name: plugged, path: "+self+", sha256: "+strings.Repeat("0", 64)+"}]")...)
	if f.Code != runner.ExitDone {
		t.Fatalf("finish %+v", f)
	}
	if s := u.Status(); s.Plugin == nil || s.Plugin.State != admin.PluginRefused || len(s.Degraded) != 1 || !strings.Contains(s.Degraded[0].Detail, "the built-in decides alone") {
		t.Errorf("degraded %+v", s.Degraded)
	}
}
