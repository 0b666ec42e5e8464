package e2e

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// steps is how many optimiser steps configs/cpu-test.yaml trains.
const steps = 16

// cached are the stages whose results are kept between runs.
var cached = []string{"environment", "target", "regenerate", "prepare"}

// TestWholeRun is a user's first hour: up, looking at it while it runs and
// after, and a second up. It comes first of all tests by the name of its file,
// so that they are held against its run and none has to make its own.
func TestWholeRun(t *testing.T) {
	h := newHome(t)
	first := h.start("up", "-f", built.config, "--plain")
	watch(t, h, first)
	end := first.wait()
	end.want(t, 0, "up")
	// Plain lines follow looks at the run, four a second: of two checkpoints between two of them, the later.
	for _, line := range []string{"environment: reused", "train: running", "checkpoint step-16 at step", "run cpu-test: ended with exit 0: all steps are trained"} {
		if !strings.Contains(end.err, line) {
			t.Errorf("plain output: want a line with %q, got\n%s", line, end.err)
		}
	}
	if !strings.HasPrefix(end.out, "run cpu-test ended with exit 0") {
		t.Errorf("stdout: want the summary and nothing else, got\n%s", end.out)
	}
	s := summaryOf(t, h, "cpu-test")
	for _, stage := range s.Stages {
		// Another test may have made target and data in the shared cache before.
		made := stage.State == admin.StageReused && slices.Contains(cached, stage.Name)
		if stage.State != admin.StageDone && !made {
			t.Errorf("stage %s: want it done, got %s", stage.Name, stage.State)
		}
	}
	t.Run("summary", func(t *testing.T) { checkSummary(t, s) })
	t.Run("over", func(t *testing.T) { checkOver(t, h) })
	t.Run("events and logs", func(t *testing.T) { checkTold(t, h, s) })
	t.Run("journal", func(t *testing.T) { checkJournal(t, h, s) })
	t.Run("checkpoints", func(t *testing.T) { checkCheckpoints(t, h) })
	keep(t, h, "cpu-test")
	if testing.Short() {
		return
	}
	t.Run("export", func(t *testing.T) { checkExport(t, h, s) })
	t.Run("again", func(t *testing.T) { checkAgain(t, h, s) })
}

// watch looks at a run while it lives: the certificate comes before the work,
// the gate lets one in at a time, and the documented fields are there.
func watch(t *testing.T, h *home, up *running) {
	t.Helper()
	held, trained, workers := false, false, 0
	h.until(up, "cpu-test", "a step is trained", func(s admin.Snapshot) bool {
		if len(s.Workers) > 0 && (len(s.Gate.Holders) > 1 || s.Gate.Width != 1) {
			t.Fatalf("gate: want at most 1 holder, got %v of width %d", s.Gate.Holders, s.Gate.Width)
		}
		held = held || s.Gate.Holder != nil
		for _, w := range s.Workers {
			if w.State == "ready" && w.Certificate == nil {
				t.Fatalf("%s is ready without a certificate", w.Name)
			}
		}
		if trained = s.Step > 0 && s.Client != nil; trained {
			workers = h.workers() // now: the run may be over before the commands below have answered
		}
		return trained
	})
	if !held { // a queue may come and go between two looks
		t.Error("gate: want a holder seen, got none")
	}
	live := h.must(0, "status", "--json")
	wantFields(t, "status --json", live.out, statusFields)
	health := h.run("health", "--json")
	wantFields(t, "health --json", health.out, healthFields)
	if workers == 0 {
		t.Errorf("want the run's workers found by their mark, got none")
	}
}

func summaryOf(t *testing.T, h *home, run string) admin.Summary {
	t.Helper()
	var s admin.Summary
	if err := json.Unmarshal([]byte(read(t, h.path(run, "summary.json"))), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// within wants a figure that was measured and lies between two.
func within(t *testing.T, what string, got *float64, low, high float64) {
	t.Helper()
	if got == nil || !(*got >= low && *got <= high) {
		v := math.NaN()
		if got != nil {
			v = *got
		}
		t.Errorf("%s: want %g to %g, got %g", what, low, high, v)
	}
}

func checkSummary(t *testing.T, s admin.Summary) {
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	wantFields(t, "summary.json", string(text), summaryFields)
	within(t, "loss_first", s.LossFirst, 3, 20)
	within(t, "loss_last", s.LossLast, 0.01, *s.LossFirst*0.7)
	within(t, "acceptance_before", s.AcceptanceBefore, 1, 1.5)
	within(t, "acceptance_after", s.AcceptanceAfter, *s.AcceptanceBefore+0.2, 4)
	within(t, "acceptance_nonlooping", s.AcceptanceNonlooping, 1, 4)
	within(t, "looping_share", s.LoopingShare, 0, 1)
	within(t, "target_top1", s.TargetTop1, 0.05, 0.95)
	within(t, "speedup", s.Speedup, 0.01, 4)
	within(t, "tokens_per_s", s.TokensPerS, 1, 1e9)
	if s.Steps != steps || s.Rows != 4*steps || s.Samples < s.Rows || s.Tokens < s.Samples || s.Prompts != 8 || s.Exit != 0 {
		t.Errorf("want %d steps of 4 rows and 8 prompts, got %+v", steps, s)
	}
	if s.Lossless == nil || !*s.Lossless {
		t.Errorf("want lossless decoding, got %v", s.Lossless)
	}
	checkParts(t, s)
}

// checkParts: workers, gate and arenas of a run in which nobody died.
func checkParts(t *testing.T, s admin.Summary) {
	t.Helper()
	names := []string{}
	for _, w := range s.Workers {
		names = append(names, w.Name.String())
		c := w.Certificate
		if w.Device != "cpu" || w.Generations != 1 || c == nil || c.Attention != "sdpa" || !slices.Equal(c.Buckets, []uint32{48, 96}) ||
			c.Graphs != 0 || c.DenseCalls != 0 || c.SecondPassCompiles != 0 || c.Seconds <= 0 {
			t.Errorf("worker %+v with certificate %+v", w, c)
		}
	}
	slices.Sort(names)
	through := []string{}
	for _, w := range s.Gate.Sequence {
		through = append(through, w.String())
	}
	slices.Sort(through)
	want := []string{"drafter/0", "drafter/1", "target/0"}
	if !slices.Equal(names, want) || !slices.Equal(through, want) || s.Gate.Width != 1 || s.Gate.MaxHolders != 1 {
		t.Errorf("want %v each once through a gate of width 1, got workers %v, gate %+v", want, names, s.Gate)
	}
	if len(s.Arenas) != 1 || s.Arenas[0].Kind != "memfd" || s.Arenas[0].Slots != 3 || s.Arenas[0].Bytes < 3*96*2*64*4 || s.Arenas[0].HandOffs != uint64(s.Rows) {
		t.Errorf("want one arena of 3 slots with a hand-off for each row, got %+v", s.Arenas)
	}
	if s.SupervisorPeakBytes > 48<<20 && !raceEnabled {
		t.Errorf("supervisor: want at most 48 MiB, got %d bytes", s.SupervisorPeakBytes)
	}
}

// checkOver: what the commands say of a run that is over.
func checkOver(t *testing.T, h *home) {
	if r := h.must(0, "status"); !strings.Contains(r.err, "note: the run is over") || !strings.Contains(r.out, "cpu-test · ended") {
		t.Errorf("status: got %s%s", r.out, r.err)
	}
	if r := h.must(2, "health"); !strings.Contains(r.out, "not running: ended with exit 0") {
		t.Errorf("health: got %s", r.out)
	}
	if r := h.must(0, "down"); !strings.Contains(r.out, "is not running: ended with exit 0 at step 16") {
		t.Errorf("down: got %s", r.out)
	}
	if _, err := os.Lstat(h.path("cpu-test", "supervisor.sock")); !os.IsNotExist(err) {
		t.Errorf("want no socket left, got %v", err)
	}
	h.must(2, "up", "-f", built.config, "--plain", "--name", "cpu-test")
	h.must(2, "up", "-f", built.config, "--plain", "--name", "cpu-test", "--resume")
}

// checkTold: events and logs tell the story, and alarm nobody.
func checkTold(t *testing.T, h *home, s admin.Summary) {
	events := h.events("cpu-test")
	for name, want := range map[string]int{"worker ready": 3, "step decided": steps, "run ends": 1, "worker ended": 3} {
		if got := len(named(events, name)); got != want {
			t.Errorf("events: want %q %d times, got %d", name, want, got)
		}
	}
	for _, e := range events {
		if e.Level != "info" {
			t.Errorf("events: want nothing to worry about, got %+v", e)
		}
	}
	if r := h.must(0, "events", "cpu-test", "--json"); strings.Count(r.out, "\n") != len(events) {
		t.Errorf("events --json: want %d lines, got\n%s", len(events), r.out)
	}
	if r := h.must(0, "events"); strings.Count(r.out, "step decided step") != steps {
		t.Errorf("events: got\n%s", r.out)
	}
	if r := h.must(0, "logs", "--failure"); r.out != "" || !strings.Contains(r.err, "no worker has died") {
		t.Errorf("logs --failure: got %s%s", r.out, r.err)
	}
	var logs []struct{ Name string }
	h.must(0, "logs", "--json").json(t, &logs)
	names := []string{"supervisor", "export", "target/0", "drafter/0", "drafter/1"}
	for _, stage := range s.Stages {
		if stage.State == admin.StageDone && stage.Name != "environment" && slices.Contains(cached, stage.Name) {
			names = append(names, stage.Name)
		}
	}
	for _, want := range names {
		if !slices.ContainsFunc(logs, func(l struct{ Name string }) bool { return l.Name == want }) {
			t.Errorf("logs: want one of %s, got %v", want, logs)
		}
	}
	h.must(0, "logs", "drafter/0")
}

func checkJournal(t *testing.T, h *home, s admin.Summary) {
	var report struct {
		Committed, Planned, Rows, Samples, Skipped, Lineage uint64
		Chain                                               string
		Ended                                               bool
	}
	h.must(0, "journal", "verify", "--json").json(t, &report)
	if report.Committed != steps || report.Rows != uint64(s.Rows) || report.Samples != s.Samples || report.Lineage != 1 || report.Chain != s.Chain || !report.Ended {
		t.Errorf("journal verify: want what the summary says (%d rows, chain %s), got %+v", s.Rows, s.Chain, report)
	}
	if n := len(survivors(t, h.journal("cpu-test")).commits); n != steps {
		t.Errorf("journal show: want %d commits, got %d", steps, n)
	}
	forged := filepath.Join(h.dir, "runs", "forged")
	if err := os.CopyFS(forged, os.DirFS(h.path("cpu-test"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(forged, "journal", "000001.journal")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.run("journal", "verify", "forged"); r.code != 1 || !strings.Contains(r.err, "at byte") {
		t.Errorf("verify of an altered journal: want exit 1 and a place, got %d, %s", r.code, r.err)
	}
	if err := os.RemoveAll(forged); err != nil { // later commands take the newest run
		t.Fatal(err)
	}
}
