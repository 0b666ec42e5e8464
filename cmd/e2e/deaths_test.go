package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// faulty starts a run whose workers misbehave (python/dflash_runner/worker/faults.py).
func (h *home) faulty(faults []string, args ...string) *running {
	h.t.Helper()
	return h.launch([]string{"DFLASH_RUNNER_FAULT=" + strings.Join(faults, ",")}, command(args...))
}

// TestStruck: workers die in four ways in one run, both drafters once at the same
// moment, and it ends as if nothing had happened.
func TestStruck(t *testing.T) {
	if testing.Short() {
		return
	}
	reference := want(t)
	h := newHome(t)
	r := h.faulty([]string{
		"drafter/1:train@3:1:exit",     // in a micro-step
		"target/0:produce:20:sigkill",  // with a slot half written
		"drafter/0:commit@7:1:sigkill", // decided, and applied by none
		"drafter/1:commit@7:1:sigkill:2",
		"drafter/1:train@11:2:raise:3", // the reducing micro-step, in its third life
		"target/0:evaluate:1:exit:2",
	}, up("struck")...)
	worried := false
	h.until(r, "struck", "all steps are trained", func(s admin.Snapshot) bool {
		worried = worried || admin.Judge(s.Status, time.Now()).Status == admin.Degraded && strings.Contains(fmt.Sprint(admin.Judge(s.Status, time.Now())), "died and starts again")
		return s.Step == steps
	})
	r.wait().want(t, 0, "up")
	if !worried {
		t.Error("want health degraded while a worker starts again")
	}
	s := summaryOf(t, h, "struck")
	records := h.journal("struck")
	survivors(t, records).equal(t, reference.history, steps)
	reference.sameSummary(t, s)
	if read(t, h.path("struck", "export", "model.safetensors")) != reference.export {
		t.Error("the export differs from the undisturbed run's")
	}
	if n := count(records, "restore"); n != 1 || s.Lineage != 2 {
		t.Errorf("want a restore where both drafters died, else replacements fed by their peers, got %d restores, lineage %d", n, s.Lineage)
	}
	checkCosts(t, h.events("struck"), records)
	h.must(0, "journal", "verify")
	checkReports(t, h, s)
}

// checkReports: each death was reported once, well.
func checkReports(t *testing.T, h *home, s admin.Summary) {
	t.Helper()
	got := map[string]runner.Failure{}
	for _, f := range s.Failures {
		got[fmt.Sprintf("%s.%d", f.Worker, f.Generation)] = f
	}
	for life, want := range map[string]runner.Failure{
		"drafter/1.1": {Cause: runner.CauseExit, ExitCode: 3, LastOrder: "train"},
		"drafter/0.1": {Cause: runner.CauseSignal, ExitCode: -1, Signal: "SIGKILL", LastOrder: "commit"},
		"target/0.1":  {Cause: runner.CauseSignal, ExitCode: -1, Signal: "SIGKILL", LastOrder: "produce"},
		"drafter/1.2": {Cause: runner.CauseSignal, ExitCode: -1, Signal: "SIGKILL", LastOrder: "commit"},
		"drafter/1.3": {Cause: runner.CausePython, LastOrder: "train"},
		"target/0.2":  {Cause: runner.CauseExit, ExitCode: 3, LastOrder: "evaluate"},
	} {
		f, ok := got[life]
		if !ok || f.Cause != want.Cause || want.ExitCode != 0 && f.ExitCode != want.ExitCode || f.Message == "" || f.Hint == "" || f.PeakBytes == 0 || f.Device != "cpu" {
			t.Errorf("%s: want %+v with message, hint and peak memory, got %+v", life, want, f)
		}
		if want.Cause != runner.CauseSignal && !strings.Contains(strings.Join(f.Stderr, "\n"), "as DFLASH_RUNNER_FAULT says") {
			t.Errorf("%s: want the last lines of stderr, got %q", life, f.Stderr)
		}
	}
	if len(s.Failures) != 6 || len(named(h.events("struck"), "worker died")) != 6 {
		t.Errorf("want six deaths, each told once, got %d in the summary, %d events", len(s.Failures), len(named(h.events("struck"), "worker died")))
	}
	if f := got["drafter/1.3"]; !strings.Contains(strings.Join(f.Traceback, "\n"), "RuntimeError: fault at train@11") {
		t.Errorf("want the traceback of the uncaught error, got %q", f.Traceback)
	}
	for _, w := range s.Workers {
		if want := map[string]int{"drafter/0": 2, "drafter/1": 4, "target/0": 3}[w.Name.String()]; int(w.Generations) != want {
			t.Errorf("%s: want %d generations, got %d", w.Name, want, w.Generations)
		}
	}
	wantFields(t, "logs --failure --json", h.must(0, "logs", "--failure", "--json").out, failureFields)
	if text := h.must(0, "logs", "--failure", "drafter/1").out; strings.Count(text, "hint: ") != 3 || !strings.Contains(text, "Traceback") {
		t.Errorf("logs --failure: want three reports with hints, and a traceback, got\n%s", text)
	}
}

// TestHanging: a worker that hangs in warm-up or in an order is ended at the
// deadline and reported with its stack; a loss that is not finite costs its row.
func TestHanging(t *testing.T) {
	if testing.Short() {
		return
	}
	reference := want(t)
	t.Parallel()
	h := newHome(t)
	r := h.faulty([]string{"drafter/0:warm_up:1:hang", "drafter/1:train@5:1:nan", "drafter/1:train@9:1:hang"},
		up("hanging", set("warmup.deadline=25s", "failure.deadlines.order=25s")...)...)
	r.wait().want(t, 0, "up")
	s := summaryOf(t, h, "hanging")
	if len(s.Failures) != 2 {
		t.Fatalf("want two deaths, got %+v", s.Failures)
	}
	for i, worker := range []string{"drafter/0", "drafter/1"} {
		f := s.Failures[i]
		if f.Worker.String() != worker || f.Cause != runner.CauseDeadline || !f.ForcedBySelf {
			t.Errorf("want %s ended at a deadline, got %+v", worker, f)
		}
		if said := strings.Join(slices.Concat(f.Traceback, f.Stderr), "\n"); !strings.Contains(said, "faults.py") || !strings.Contains(said, "_strike") {
			t.Errorf("%s: want the stack of where it hung, got %q", worker, said)
		}
	}
	records := h.journal("hanging")
	survivors(t, records).equal(t, history{commits: reference.history.commits}, 4)
	var report struct{ Committed, Skipped uint64 }
	h.must(0, "journal", "verify", "hanging", "--json").json(t, &report)
	if count(records, "skip") != 1 || s.Skipped == 0 || report.Skipped == 0 || report.Committed != steps {
		t.Errorf("want one row skipped with its samples counted, got %d records, %d in the summary, %+v", count(records, "skip"), s.Skipped, report)
	}
	for _, rec := range records {
		if rec.Type == "skip" && (rec.Record.Step != 5 || rec.Record.Reason == "") {
			t.Errorf("want a skip at step 5 with a reason, got %+v", rec)
		}
	}
}

// TestHopeless: what a retry cannot mend is not retried: exit 93.
func TestHopeless(t *testing.T) {
	if testing.Short() {
		return
	}
	t.Parallel()
	h := newHome(t)
	faults := []string{}
	for n := range 64 {
		faults = append(faults, fmt.Sprintf("*:train:%d:nan", n+1))
	}
	h.faulty(faults, up("nan")...).wait().want(t, 93, "up with losses that are never finite")
	s := summaryOf(t, h, "nan")
	if s.Exit != 93 || !strings.Contains(s.ExitReason, "3 votes running were not finite") || s.Rows != 0 || s.LossFirst != nil {
		t.Errorf("want exit 93 with its reason and no row, got %+v", s)
	}
	h.must(2, "health", "nan")

	// every row of the only step is skipped: nothing was trained
	h.faulty(faults, up("nothing", set("training.steps=1", "failure.nonfinite_steps=1000")...)...).wait().want(t, 93, "up with nothing trained")
	if s := summaryOf(t, h, "nothing"); !strings.Contains(s.ExitReason, "nothing was trained") || s.Rows != 0 || s.Skipped < 4 || s.Export != "" {
		t.Errorf("want every sample of the step skipped and nothing exported, got %+v", s)
	}
}

// TestHangJudged: a worker that is deadlocked on a lock, and one that is
// stopped, are ended by the evidence long before their deadline; one that holds
// the interpreter lock and computes is left to it.
func TestHangJudged(t *testing.T) {
	if testing.Short() {
		return
	}
	t.Parallel()
	h := newHome(t)
	r := h.faulty([]string{"drafter/1:train@7:1:deadlock", "drafter/0:train@9:1:spin"},
		up("judged", set("failure.hang.order=6s", "failure.hang.heartbeat=5s", "failure.deadlines.order=25s")...)...)
	pid := 0
	h.until(r, "judged", "step 4", func(s admin.Snapshot) bool {
		for _, w := range s.Workers {
			if w.Name.String() == "target/0" {
				pid = w.Pid
			}
		}
		return s.Step >= 4
	})
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.wait().want(t, 0, "up")
	s := summaryOf(t, h, "judged")
	if len(s.Failures) != 3 {
		t.Fatalf("want three deaths, got %+v", s.Failures)
	}
	for _, f := range s.Failures {
		want := map[string]string{"target/0": "it hangs: no sign of life for ", "drafter/1": "it hangs: no progress in train step 7 ", "drafter/0": "it did not answer train within 25s"}[f.Worker.String()]
		if f.Cause != runner.CauseDeadline || !strings.HasPrefix(f.Message, want) {
			t.Errorf("%s: want %q, got %s: %q", f.Worker, want, f.Cause, f.Message)
		}
		if said := strings.Join(slices.Concat(f.Traceback, f.Stderr), "\n"); f.Worker.Role == runner.Drafter && !strings.Contains(said, "_strike") {
			t.Errorf("%s: want the stack of where it hung, got %q", f.Worker, said)
		}
		if f.Worker.Role == runner.Target && !strings.Contains(f.Message, "its process is stopped") {
			t.Errorf("want the state of its process, got %q", f.Message)
		}
	}
}

// TestSameAgain: an error that comes again at the same work is not tried a
// third time, and a run that starts nothing again ends at its first death.
func TestSameAgain(t *testing.T) {
	if testing.Short() {
		return
	}
	t.Parallel()
	h := newHome(t)
	r := h.faulty([]string{"drafter/1:train@3:1:raise:*"}, up("again")...).wait()
	r.want(t, 93, "up with an error that comes again")
	s := summaryOf(t, h, "again")
	if want := "drafter/1.1 and drafter/1.2 died of the same cause at the same work (train step 3 micro 0 row "; len(s.Failures) != 2 || !strings.HasPrefix(s.ExitReason, want) || !strings.Contains(s.ExitReason, "python: RuntimeError: fault at train@3") {
		t.Errorf("want two deaths and %q, got %d: %s", want, len(s.Failures), s.ExitReason)
	}
	for _, f := range s.Failures {
		if !strings.HasPrefix(f.Doing, "train step 3 micro 0 row ") || f.Incident == 0 {
			t.Errorf("want what it was doing, and the incident, got %+v", f)
		}
	}
	for _, e := range named(h.events("again"), "worker died") {
		took := e.At.Sub(e.Failure.At)
		t.Logf("%s: from the death to its report %v", e.Worker, took)
		if took > time.Second {
			t.Errorf("%s: want a report within a second of the death, got %v", e.Worker, took)
		}
	}
	if r.out == "" || !strings.Contains(r.out, "  died at: train step 3 micro 0 row ") || !strings.Contains(r.out, "traceback:") {
		t.Errorf("want the report at the end, got\n%s", r.out)
	}
	r = h.faulty([]string{"target/0:produce:9:sigkill:*"}, up("once", set("workers.on_failure=stop")...)...).wait()
	r.want(t, 1, "up that starts nothing again")
	if s := summaryOf(t, h, "once"); len(s.Failures) != 1 || !strings.Contains(s.ExitReason, "target/0.1 died, and nothing is started again (workers.on_failure: stop): signal: killed by SIGKILL") || s.Next == "" {
		t.Errorf("want one death and how to go on, got %d: %s; next %q", len(s.Failures), s.ExitReason, s.Next)
	}
}

// TestNeverStarts: workers that end before the handshake end the run, with
// reports, as soon as a second try ended as the first.
func TestNeverStarts(t *testing.T) {
	if testing.Short() {
		return
	}
	h := newHome(t)
	r := h.faulty([]string{"*:start:1:exit:*"}, up("stillborn")...).wait()
	r.want(t, 93, "up")
	s := summaryOf(t, h, "stillborn")
	text, err := json.Marshal(s.Failures)
	if err != nil {
		t.Fatal(err)
	}
	wantFields(t, "failures", string(text), failureFields)
	for _, f := range s.Failures {
		if f.ExitCode != 3 && !f.ForcedBySelf || f.Hint == "" || f.Message == "" {
			t.Errorf("want exit code 3, a message and a hint, got %+v", f)
		}
	}
	if !strings.Contains(s.ExitReason, "(launch), which a restart cannot help") || !strings.Contains(r.out, "exit 93") {
		t.Errorf("want the reason, got %q\n%s", s.ExitReason, r.out)
	}
}
