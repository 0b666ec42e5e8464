package view

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func f(x float64) *float64 { return &x }

var (
	target0  = runner.Worker{Role: runner.Target}
	drafter0 = runner.Worker{Role: runner.Drafter}
	drafter1 = runner.Worker{Role: runner.Drafter, Rank: 1}
)

// midway is a run in the middle of training.
func midway() admin.Status {
	return admin.Status{
		Name: "cpu-tiny", State: admin.Training, Step: 180, StepsTotal: 400, Epoch: 2, Lineage: 1, Directory: "runs/cpu-tiny",
		Loss: f(1.83214), TokensPerS: f(23123.4),
		Stages: []admin.Stage{
			{Name: "environment", State: admin.StageReused},
			{Name: "target", State: admin.StageDone, Seconds: 123.2, Figures: map[string]float64{"top1": 0.5612}},
			{Name: "train", State: admin.StageRunning, Done: 180, Total: 400, ETAS: f(38.4), Seconds: 30},
			{Name: "export", State: admin.StageWaiting},
		},
		Workers: []admin.WorkerStatus{
			{Name: target0, Role: runner.Target, Pid: 10, Generation: 1, State: "ready", Device: "cpu", Order: "produce", SinceMS: 12, RSSBytes: 512 << 20},
			{Name: drafter0, Role: runner.Drafter, Pid: 11, Generation: 1, State: "ready", Device: "cpu", RSSBytes: 600 << 20},
			{Name: drafter1, Role: runner.Drafter, Pid: 12, Generation: 2, State: "waiting", Device: "cpu", SinceMS: 3400, RSSBytes: 90 << 20},
		},
		Gate:      admin.GateStatus{Width: 1, Holders: []runner.Worker{drafter0}, Queue: []admin.Queued{{Worker: drafter1, WaitedMS: 3400}}},
		StartedAt: time.Unix(1000, 0), UpdatedAt: time.Unix(1192, 0),
	}
}

// waits has a plugin owe an answer.
func waits(question string, ms int64) func(*admin.Status) {
	return func(s *admin.Status) {
		s.Plugin = &admin.PluginStatus{Name: "mine", Waiting: &admin.PluginWait{Question: question, WaitedMS: ms, DeadlineMS: 120_000, Questions: 1}}
	}
}

func TestLines(t *testing.T) {
	at := func(n runner.Step) *runner.Step { return &n }
	zero, fail := 0, runner.Failure{Worker: drafter1, Generation: 1, Cause: runner.CauseSignal, Message: "killed by\nSIGKILL\u001b[2J", Hint: "see the log", At: time.Unix(1005, 0)}
	cert := &runner.Certificate{Attention: "sdpa"}
	same := func(*admin.Status) {}
	restored := func(lineage runner.Lineage, step, undone runner.Step) func(*admin.Status) {
		return func(s *admin.Status) { s.Restored = &admin.RestoreStatus{Lineage: lineage, Step: step, Undone: undone} }
	}
	cases := []struct {
		name string
		from func(*admin.Status) // nil: the zero status
		to   func(*admin.Status)
		want []string
	}{
		{"the first status", nil, func(s *admin.Status) { s.Workers = nil }, []string{
			"run cpu-tiny: training in runs/cpu-tiny", "environment: reused", "target: done after 2m03s top1 0.5612", "train: running"}},
		{"nothing changed", same, same, nil},
		{"a plugin that is asked", same, waits("arrange", 1999), nil},
		{"a plugin that hangs", waits("arrange", 1999), waits("arrange", 2000), []string{"scheduler mine: waits 2s of 2m0s for arrange"}},
		{"a plugin that still hangs", waits("arrange", 2000), waits("arrange", 9999), nil},
		{"a plugin that hangs again", waits("arrange", 3000), waits("arrange", 2500), []string{"scheduler mine: waits 3s of 2m0s for arrange"}},
		{"a plugin that hangs with another", waits("arrange", 2000), waits("assign", 3000), []string{"scheduler mine: waits 3s of 2m0s for assign"}},
		{"a plugin that answered", waits("arrange", 2000), same, nil},
		{"a step that is no twentieth", same, func(s *admin.Status) { s.Stages[2].Done = 199; s.Loss = f(1) }, nil},
		{"a twentieth of the steps", same, func(s *admin.Status) { s.Stages[2].Done = 200 },
			[]string{"train: 200 of 400, loss 1.8321, 23123 tokens/s lately, eta 38s"}},
		{"a stage ends", same, func(s *admin.Status) { s.Stages[2].State = admin.StageDone }, []string{"train: done after 30s"}},
		{"a stage fails", same, func(s *admin.Status) { s.Stages[2].State = admin.StageFailed }, []string{"train: failed after 30s"}},
		{"another stage's progress", func(s *admin.Status) { s.Stages[2].Name = "target" }, func(s *admin.Status) {
			s.Stages[2] = admin.Stage{Name: "regenerate", State: admin.StageRunning, Done: 350, Total: 700}
		}, []string{"regenerate: running"}},
		{"a worker is ready", func(s *admin.Status) { s.Workers[1].State = "warming" }, func(s *admin.Status) { s.Workers[1].Certificate = cert },
			[]string{"drafter/0: ready: certificate with sdpa, 0 dense calls, 0 compiles in the second pass"}},
		{"a worker with compiled kernels", func(s *admin.Status) { s.Workers[1].State = "warming" }, func(s *admin.Status) {
			s.Workers[1].Certificate = &runner.Certificate{Attention: "flex", Cache: "warm", Seconds: map[string]float64{"total": 4.2}}
		}, []string{"drafter/0: ready: certificate with flex, 0 dense calls, 0 compiles in the second pass, cache warm, 4s"}},
		{"a GPU before its first sample", same, func(s *admin.Status) {
			s.Devices = []admin.DeviceStatus{{Status: admin.Unknown, Detail: "no sample yet"}}
		}, nil},
		{"a GPU is watched", func(s *admin.Status) { s.Devices = []admin.DeviceStatus{{Status: admin.Unknown}} }, func(s *admin.Status) { s.Devices = []admin.DeviceStatus{{Status: admin.Healthy}} }, []string{"GPU 0: healthy"}},
		{"a GPU falls silent", func(s *admin.Status) { s.Devices = []admin.DeviceStatus{{Index: 3, Status: admin.Healthy}} }, func(s *admin.Status) {
			s.Devices = []admin.DeviceStatus{{Index: 3, Status: admin.Unknown, Detail: "no sample\nfor 12s"}}
		}, []string{"GPU 3: unknown: no sample for 12s"}},
		{"a death", same, func(s *admin.Status) {
			s.Workers[2].State, s.Failures = "backoff", []runner.Failure{fail}
		}, []string{"drafter/1: backoff (generation 2)", "failure: drafter/1.1: signal: killed by SIGKILL[2J", "hint: see the log"}},
		{"a death of an earlier life", same, func(s *admin.Status) {
			old := fail
			old.At = time.Unix(900, 0)
			s.Failures = []runner.Failure{old}
		}, nil},
		{"the same failure is told once", func(s *admin.Status) { s.Failures = []runner.Failure{fail} }, func(s *admin.Status) { s.Failures = []runner.Failure{fail} }, nil},
		{"a worker ends as told", same, func(s *admin.Status) { s.Workers[0].State = "gone" }, []string{"target/0: ended"}},
		{"one piece is no progress", func(s *admin.Status) { s.Stages[2] = admin.Stage{Name: "export", State: admin.StageRunning, Total: 1} },
			func(s *admin.Status) {
				s.Stages[2] = admin.Stage{Name: "export", State: admin.StageRunning, Done: 1, Total: 1}
			}, nil},
		{"bytes", func(s *admin.Status) { s.Stages[0] = admin.Stage{Name: "environment", State: admin.StageRunning} },
			func(s *admin.Status) {
				s.Stages[0] = admin.Stage{Name: "environment", State: admin.StageRunning, Done: 300 << 20, Total: 900 << 20}
			}, []string{"environment: 300 MiB of 900 MiB"}},
		{"a restore", same, restored(2, 175, 9), []string{"restored: lineage 2 goes on from step 175; 9 decided steps are trained again"}},
		{"a restore that undoes one", restored(2, 9, 0), restored(3, 6, 1), []string{"restored: lineage 3 goes on from step 6; 1 decided step is trained again"}},
		{"a resume that undoes none", same, restored(4, 8, 0), []string{"restored: lineage 4 goes on from step 8; no step is trained again"}},
		{"the same restore", restored(4, 8, 0), restored(4, 8, 0), nil},
		{"a checkpoint", same, func(s *admin.Status) { s.Checkpoint = &admin.CheckpointStatus{Name: "step-180", Step: 180} }, []string{"checkpoint step-180 at step 180"}},
		{"acceptance is of the step that was evaluated", func(s *admin.Status) { s.Acceptance, s.AcceptanceAt = f(1), at(0) },
			func(s *admin.Status) { s.Acceptance, s.AcceptanceAt = f(5.498), at(160) }, []string{"acceptance 5.50 at step 160"}},
		{"the same acceptance of another step", func(s *admin.Status) { s.Acceptance, s.AcceptanceAt = f(1), at(0) },
			func(s *admin.Status) { s.Acceptance, s.AcceptanceAt = f(1), at(160) }, []string{"acceptance 1.00 at step 160"}},
		{"the same acceptance is told once", func(s *admin.Status) { s.Acceptance, s.AcceptanceAt = f(1), at(0) },
			func(s *admin.Status) { s.Acceptance, s.AcceptanceAt = f(1), at(0) }, nil},
		{"degraded", same, func(s *admin.Status) { s.Degraded = []admin.Reason{{Name: "checkpoint", Detail: "disk full"}} }, []string{"degraded: checkpoint: disk full"}},
		{"stopping", same, func(s *admin.Status) { s.State = admin.Stopping }, []string{"run cpu-tiny: stopping"}},
		{"the end", same, func(s *admin.Status) { s.State, s.Exit, s.ExitReason = admin.Ended, &zero, "done" }, []string{"run cpu-tiny: ended with exit 0: done"}},
		{"lost", same, func(s *admin.Status) { s.State = admin.Lost }, []string{"run cpu-tiny: lost"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			last, next := admin.Status{}, midway()
			if c.from != nil {
				last = midway()
				c.from(&last)
			}
			c.to(&next)
			if got := Lines(last, next); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("want\n%s\ngot\n%s", strings.Join(c.want, "\n"), strings.Join(got, "\n"))
			}
		})
	}
}

// TestProgressOfAnotherStage: a job's own figures are shown.
func TestProgressOfAnotherStage(t *testing.T) {
	stage := admin.Stage{Name: "target", State: admin.StageRunning, Done: 340, Total: 700, Figures: map[string]float64{"tokens_per_s": 8000}}
	last := admin.Status{State: admin.Starting, Stages: []admin.Stage{stage}}
	stage.Done = 350
	next := admin.Status{State: admin.Starting, Stages: []admin.Stage{stage}}
	if got := strings.Join(Lines(last, next), "\n"); got != "target: 350 of 700, tokens per s 8000" {
		t.Errorf("got %s", got)
	}
}

func TestPlainRemembers(t *testing.T) {
	var out bytes.Buffer
	p := NewPlain(&out)
	for range 2 {
		if err := p.Print(midway()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "run cpu-tiny"); n != 1 {
		t.Errorf("want the state once, got %d times:\n%s", n, out.String())
	}
}

// TestRemindersWiden: a wait of minutes, looked at each second, is a few lines.
func TestRemindersWiden(t *testing.T) {
	var got []string
	last := midway()
	for ms := int64(400); ms < 200_000; ms += 1000 {
		next := midway()
		waits("arrange", ms)(&next)
		got, last = append(got, Lines(last, next)...), next
	}
	var want []string
	for _, at := range []string{"2s", "10s", "30s", "1m0s", "2m0s", "3m0s"} {
		want = append(want, "scheduler mine: waits "+at+" of 2m0s for arrange")
	}
	if !slices.Equal(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
}
