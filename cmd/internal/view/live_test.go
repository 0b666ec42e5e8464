package view

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

var update = flag.Bool("update", false, "rewrite the golden views")

// plainModel is a model without colours.
func plainModel(s admin.Status, width int) model {
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.Ascii)
	return model{status: s, snapshot: func() admin.Status { return s }, stop: func(admin.Mode) {}, width: width, style: newStyle(r)}
}

// TestStageMarks: only what was done has a tick, and only what failed a cross.
func TestStageMarks(t *testing.T) {
	for state, want := range map[string]string{admin.StageDone: "✓", admin.StageReused: "✓", admin.StageSkipped: "–", admin.StageStopped: "■", admin.StageFailed: "✗", admin.StageWaiting: "○", admin.StageRunning: "●"} {
		if got := plainModel(admin.Status{}, 80).stage(admin.Stage{Name: "train", State: state}); !strings.HasPrefix(got, "  "+want+" train") {
			t.Errorf("%s: got %q, want mark %s", state, got, want)
		}
	}
}

func TestView(t *testing.T) {
	exit := 75
	for name, c := range map[string]struct {
		width  int
		change func(*admin.Status)
		stops  int
	}{
		"training": {100, func(*admin.Status) {}, 0},
		"narrow":   {40, func(*admin.Status) {}, 0},
		"stopping": {100, func(s *admin.Status) { s.State = admin.Stopping }, 1},
		"starting": {100, func(s *admin.Status) { *s = admin.Status{Name: "x", State: admin.Starting} }, 0},
		"troubled": {100, func(s *admin.Status) {
			s.Lineage = 2
			s.Workers[2].State = "backoff"
			s.Failures = []runner.Failure{{Worker: drafter1, Generation: 1, Cause: runner.CauseOOM, Message: "killed for memory " + strings.Repeat("x", 200), Hint: "use fewer slots", At: time.Unix(1005, 0)}}
			s.Degraded = []admin.Reason{{Name: "checkpoint", Detail: "disk full\u001b[31m"}}
		}, 0},
		"plugin": {120, func(s *admin.Status) {
			chat, code := 1.5, 2.25
			s.Losses = []admin.SourceLoss{{Source: "chat", Loss: &chat}, {Source: "web"}, {Source: "code", Loss: &code}}
			s.Plugin = &admin.PluginStatus{Name: "curriculum", Version: "0.2.0", State: "quarantined", Calls: 42, Answers: 37, Refused: 5, Strikes: 1}
			s.Decisions = []admin.Decision{{What: "place", By: "curriculum"}, {What: "arrange", By: "built-in"}}
		}, 0},
		"waits": {120, func(s *admin.Status) {
			s.Plugin = &admin.PluginStatus{Name: "curriculum", Version: "0.2.0", State: "running", Calls: 3, Answers: 3, RSSBytes: 31 << 20,
				Waiting: &admin.PluginWait{Question: "arrange", WaitedMS: 12_000, DeadlineMS: 120_000, Questions: 1}}
		}, 0},
		"phases": {100, func(s *admin.Status) { // what has no count or no pace shows the time it took so far, never an end
			s.Stages = []admin.Stage{
				{Name: "environment", State: admin.StageRunning, Phase: "download", Done: 5 << 20, Total: 780 << 20, Seconds: 9},
				{Name: "target", State: admin.StageRunning, Phase: "corpus", Seconds: 3},
				{Name: "launch", State: admin.StageRunning, Seconds: 4},
				{Name: "export", State: admin.StageRunning, Done: 1, Total: 1, Seconds: 2},
			}
			for i := range s.Workers {
				s.Workers[i].State, s.Workers[i].Order, s.Workers[i].RSSBytes = "gone", "", 0
			}
		}, 0},
		"gpus": {100, func(s *admin.Status) {
			busy, watts, heat, used, total := 97.4, 651.2, 61.0, uint64(53<<30), uint64(140<<30)
			s.Devices = []admin.DeviceStatus{
				{UUID: "GPU-5e01", Status: admin.Healthy, Utilisation: &busy, PowerW: &watts, TemperatureC: &heat, MemoryUsedBytes: &used, MemoryTotalBytes: &total},
				{UUID: "GPU-5e02", Index: 1, Status: admin.Degraded, Detail: "slowed down: thermal, by hardware", TemperatureC: &heat},
				{UUID: "GPU-5e03", Index: 2, Status: admin.Unknown, Detail: "no sample for 12s\u001b[2J", Utilisation: &busy},
			}
			for i, w := range []string{"GPU-5e01", "GPU-5e01", "GPU-5e02"} {
				s.Workers[i].Device = w
			}
			s.Workers[1].Certificate = &runner.Certificate{Attention: "flex", Cache: "cold", Seconds: map[string]float64{"total": 31.4}}
			s.Workers[1].Order = ""
		}, 0},
		"ended": {100, func(s *admin.Status) {
			s.State, s.Exit, s.ExitReason, s.Acceptance = admin.Ended, &exit, "stopped by a signal", f(5.5)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := midway()
			c.change(&s)
			m := plainModel(s, c.width)
			m.stops = c.stops
			got := m.View()
			for _, line := range strings.Split(got, "\n") {
				if n := lipgloss.Width(line); n > c.width {
					t.Errorf("want at most %d columns, got %d: %s", c.width, n, line)
				}
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || string(want) != got {
				t.Errorf("%s: %v: want\n%s\ngot\n%s", file, err, want, got)
			}
		})
	}
}

// TestControlC: once is graceful, twice and more is quick, as with signals.
func TestControlC(t *testing.T) {
	var asked []admin.Mode
	m := plainModel(midway(), 80)
	m.stop = func(mode admin.Mode) { asked = append(asked, mode) }
	var next tea.Model = m
	for _, key := range []tea.KeyMsg{{Type: tea.KeyRunes, Runes: []rune("q")}, {Type: tea.KeyCtrlC}, {Type: tea.KeyCtrlC}, {Type: tea.KeyCtrlC}} {
		var cmd tea.Cmd
		if next, cmd = next.Update(key); cmd != nil {
			t.Error("a key must not end the view: the run does")
		}
	}
	if len(asked) != 3 || asked[0] != admin.Graceful || asked[1] != admin.Quick || asked[2] != admin.Quick {
		t.Errorf("want graceful, quick, quick, got %v", asked)
	}
}

func TestUpdate(t *testing.T) {
	m := plainModel(midway(), 80)
	next, _ := m.Update(tea.WindowSizeMsg{Width: 120})
	if got := next.(model).width; got != 120 {
		t.Errorf("width: got %d", got)
	}
	over := midway()
	over.State = admin.Ended
	m.snapshot = func() admin.Status { return over }
	next, cmd := m.Update(look{})
	if next.(model).status.State != admin.Ended || cmd == nil {
		t.Fatal("want the new status and the end of the view")
	}
	if _, ok := cmd().(tea.QuitMsg); !ok {
		t.Error("want the view to end with the run")
	}
}

// TestLive runs the whole program: a key from the input, the end from the run.
func TestLive(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex // guards the run's state
	s := midway()
	in, keys, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = keys.Close() }()
	if _, err := keys.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = Live(ctx, in, &out, func() admin.Status {
		mu.Lock()
		defer mu.Unlock()
		return s
	}, func(mode admin.Mode) {
		mu.Lock()
		defer mu.Unlock()
		if mode == admin.Graceful {
			s.State = admin.Ended
		}
	})
	if err != nil || ctx.Err() != nil {
		t.Fatalf("got %v, %v", err, ctx.Err())
	}
	if !strings.Contains(out.String(), "cpu-tiny") {
		t.Errorf("want the run on the terminal, got %q", out.String())
	}
}

func TestLiveEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in, keys, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = keys.Close() }()
	if err := Live(ctx, in, io.Discard, midway, func(admin.Mode) {}); err != nil {
		t.Error(err)
	}
}
