package bench

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// TestMain turns this binary into the plugin that is measured, or the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "plugin" {
		ServeFirst()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestSchedulerCalls asks this program as a plugin, and a script that borrows
// the workers' Python, each in a process of its own.
func TestSchedulerCalls(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path    string
		args    []string
		name    string
		figures int
		goal    float64
	}{
		{self, []string{"plugin"}, "first", 6, 300},
		{"../../../plugins/examples/steer-by-loss/steer_by_loss.py", nil, "steer-by-loss", 4, 600}, // it arranges alone
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := host.Pin(c.path, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			p := &Python{}
			if e.Script() {
				p.interpreter = pyenvtest.Ensure(t).Python
			}
			if p.dir, err = os.MkdirTemp("", "s"); err != nil { // a socket's path must be short
				t.Fatal(err)
			}
			defer os.RemoveAll(p.dir)
			r := start("scheduler")
			name, err := r.calls(t.Context(), p, e, 3)
			if err != nil || name != c.name || len(r.Figures) != c.figures {
				t.Fatalf("got %q, %v, %+v", name, err, r.Figures)
			}
			for _, f := range r.Figures {
				wanted := strings.HasSuffix(f.Name, " p50") && !strings.Contains(f.Name, "20000 of")
				if f.Value <= 0 || (f.Goal != nil) != wanted || wanted && f.Goal.Limit != c.goal {
					t.Errorf("got %+v", f)
				}
			}
		})
	}
}

func TestSchedules(t *testing.T) {
	ms := func(all ...int) (out []time.Duration) {
		for _, x := range all {
			out = append(out, time.Duration(x)*time.Millisecond)
		}
		return out
	}
	r := start("scheduler")
	r.schedules("x", &sides{steps: ms(30, 10, 20), rows: 12, seconds: 3}, &sides{steps: ms(19, 22, 90, 21), rows: 8, seconds: 4, calls: 6, refused: 1})
	got := map[string]Figure{}
	for _, f := range r.Figures {
		got[f.Name] = f
	}
	if f := got["step with it p50"]; f.Value != 21 || *f.Ratio != 1.05 || *f.Met {
		t.Errorf("got %+v", f)
	}
	if f := got["rows a second with it"]; f.Value != 2 || *f.Ratio != 0.5 {
		t.Errorf("got %+v", f)
	}
	if f := got["questions a step"]; f.Value != 1.5 {
		t.Errorf("got %+v", f)
	}
	if f := got["answers refused"]; f.Value != 1 || *f.Met {
		t.Errorf("got %+v", f)
	}
}
