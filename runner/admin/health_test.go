package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	exit0, exit1 := 0, 1
	target, drafter := runner.Worker{Role: runner.Target}, runner.Worker{Role: runner.Drafter}
	good := func(change func(*Status)) Status {
		s := Status{State: Training, Step: 7, UpdatedAt: now.Add(-time.Second),
			Workers: []WorkerStatus{{Name: target, State: "ready", Generation: 1}, {Name: drafter, State: "ready", Generation: 1}},
			Arenas:  []ArenaStatus{{Slots: []SlotStatus{{State: "free"}, {State: "full"}}}}}
		change(&s)
		return s
	}
	cases := []struct {
		name   string
		change func(*Status)
		want   Grade
		exit   int
		detail string // of some check
	}{
		{"all well", func(*Status) {}, Healthy, 0, "2 of 2 ready"},
		{"first start", func(s *Status) { s.State, s.Workers[0].State = Starting, "warming" }, Healthy, 0, "1 of 2 ready"},
		{"a second start", func(s *Status) { s.Workers[1].State, s.Workers[1].Generation = "warming", 2 }, Degraded, 1, "drafter/0 is being started again"},
		{"two at once", func(s *Status) {
			for i := range s.Workers {
				s.Workers[i].State, s.Workers[i].Generation = "launching", 2
			}
		}, Degraded, 1, "target/0 is being started again; drafter/0 is being started again"},
		{"the worse one alone", func(s *Status) { s.Workers[0].State, s.Workers[1].State = "backoff", "failed" }, Critical, 2, "drafter/0 failed and will not be started again"},
		{"a plugin that does well", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Version: "1.0", State: "running", Calls: 7, Answers: 6}
			s.Decisions = []Decision{{What: "place", By: "mine"}, {What: "on_failure", By: "built-in"}}
		}, Healthy, 0, "plugin mine 1.0 is running, 7 questions, 6 answers used; place by mine, on_failure by built-in"},
		{"a death", func(s *Status) { s.Workers[1].State = "backoff" }, Degraded, 1, "drafter/0 died and starts again"},
		{"a failed worker outweighs a death", func(s *Status) { s.Workers[0].State, s.Workers[1].State = "lost", "failed" }, Critical, 2, "drafter/0 failed"},
		{"a later start that is done", func(s *Status) { s.Workers[1].Generation = 3 }, Healthy, 0, ""},
		{"quarantine", func(s *Status) { s.Arenas[0].Slots[1].State = "quarantined" }, Degraded, 1, "1 of 2 slots quarantined"},
		{"GPUs well", func(s *Status) { s.Devices = []DeviceStatus{{Status: Healthy}, {Index: 1, Status: Healthy}} }, Healthy, 0, "2 watched"},
		{"a GPU that does not answer", func(s *Status) {
			s.Devices = []DeviceStatus{{Status: Healthy}, {Index: 1, Status: Unknown, Detail: "no sample for 12s"}}
		}, Unknown, 1, "GPU 1: no sample for 12s"},
		{"a slow GPU outweighs silence", func(s *Status) {
			s.Devices = []DeviceStatus{{Status: Unknown, Detail: "silent"}, {Index: 1, Status: Degraded, Detail: "slowed down"}}
		}, Degraded, 1, "GPU 1: slowed down"},
		{"a GPU to be reset", func(s *Status) { s.Devices = []DeviceStatus{{Status: Critical, Detail: "gpu reset"}} }, Critical, 2, "GPU 0: gpu reset"},
		{"disk full", func(s *Status) { s.Degraded = []Reason{{"checkpoint", "no space left"}} }, Degraded, 1, "no space left"},
		{"a plugin that schedules", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Version: "1.0", State: "running", Calls: 9, Answers: 8}
		}, Healthy, 0, "plugin mine 1.0 is running, 9 questions, 8 answers used"},
		{"a plugin that is asked just now", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Version: "1.0", State: "running", Waiting: &PluginWait{Question: "arrange", WaitedMS: 1999, DeadlineMS: 120_000, Questions: 1}}
		}, Healthy, 0, "plugin mine 1.0 is running, 0 questions, 0 answers used"},
		{"a plugin that takes long", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Version: "1.0", State: "running", Waiting: &PluginWait{Question: "arrange", WaitedMS: 59_400, DeadlineMS: 120_000, Questions: 2}}
		}, Healthy, 0, "0 answers used; waits 59s of 2m0s for arrange and 1 more"},
		{"a plugin that hangs", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Version: "1.0", State: "running", Waiting: &PluginWait{Question: "arrange", WaitedMS: 60_000, DeadlineMS: 120_000, Questions: 1}}
		}, Degraded, 1, "0 answers used; waits 1m0s of 2m0s for arrange"},
		{"half of a short deadline", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Version: "1.0", State: "running", Waiting: &PluginWait{Question: "arrange", WaitedMS: 9999, DeadlineMS: 12_000, Questions: 1}}
		}, Healthy, 0, "waits 10s of 12s for arrange"},
		{"most of a short deadline", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Version: "1.0", State: "running", Waiting: &PluginWait{Question: "arrange", WaitedMS: 10_000, DeadlineMS: 12_000, Questions: 1}}
		}, Degraded, 1, "waits 10s of 12s for arrange"},
		{"a plugin that was late and is waited for", func(s *Status) {
			s.Plugin = &PluginStatus{Name: "mine", Refused: 1, State: "running", Waiting: &PluginWait{Question: "arrange", WaitedMS: 7000, DeadlineMS: 25_000, Questions: 1}}
			s.Degraded = []Reason{{"scheduler", "plugin mine is running: 1 answers refused"}}
		}, Degraded, 1, "plugin mine: waits 7s of 25s for arrange\nplugin mine is running: 1 answers refused"},
		{"no news", func(s *Status) { s.UpdatedAt = now.Add(-31 * time.Second) }, Unknown, 1, "no news for 31s"},
		{"no news and a death", func(s *Status) { s.UpdatedAt = now.Add(-time.Minute); s.Workers[0].State = "lost" }, Degraded, 1, "no news"},
		{"nothing yet", func(s *Status) { *s = Status{State: Starting} }, Unknown, 1, "no status yet"},
		{"ended well", func(s *Status) { s.State, s.Exit = Ended, &exit0 }, Critical, 2, "not running: ended with exit 0"},
		{"ended badly", func(s *Status) { s.State, s.Exit = Ended, &exit1 }, Critical, 2, "not running: ended with exit 1"},
		{"killed", func(s *Status) { s.State = Lost }, Critical, 2, "gone without an end: last heard of at step 7"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := Judge(good(c.change), now)
			if h.Status != c.want || h.Exit() != c.exit {
				t.Errorf("want %s (exit %d), got %s (exit %d): %+v", c.want, c.exit, h.Status, h.Exit(), h.Checks)
			}
			details := ""
			for _, check := range h.Checks {
				details += check.Detail + "\n"
			}
			if !strings.Contains(details, c.detail) {
				t.Errorf("want a detail %q, got %q", c.detail, details)
			}
		})
	}
}
