package view

import (
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func TestSummary(t *testing.T) {
	yes := true
	full := admin.Summary{Name: "cpu-tiny", Steps: 400, Rows: 3200, Samples: 3200, Tokens: 460800, LossFirst: f(5.5), LossLast: f(1.25),
		AcceptanceBefore: f(1), AcceptanceAfter: f(5.5), AcceptanceNonlooping: f(5.08), LoopingShare: f(0.62), PromptsNonlooping: 9, Prompts: 24,
		Lossless: &yes, PlainTokensPerS: f(149.9), DecodeTokensPerS: f(396.1), Speedup: f(2.64), TargetTop1: f(0.56), TokensPerS: f(6500),
		ImageStall: admin.Stall{Commits: 3, Seconds: 1.5, LongestS: 0.25, Share: f(0.012)},
		Plugin:     &admin.SummaryPlugin{Name: "by-loss", Version: "0.1.0", Answers: 8, Refused: 1, Fallbacks: 2, Samples: 64, Moved: 60},
		Export:     "runs/cpu-tiny/export", ExitReason: "done"}
	want := `run cpu-tiny ended with exit 0: done
  trained      400 steps, 3,200 rows, 3,200 samples, 460,800 tokens
  loss         5.5000 -> 1.2500
  acceptance   1.00 -> 5.50 tokens per target forward, over 24 held-out prompts, lossless
               5.08 on the 9 prompts that do not loop (62 % do)
  decoding     149.9 -> 396.1 tokens/s, 2.64 x
  target       held-out top-1 accuracy 0.560
  speed        6500 tokens/s over all of training
  images       kept commits waiting 1.2 % of the time, 250 ms at the longest
  scheduler    by-loss 0.1.0: 8 answers, 1 refused, 2 by the built-in; 60 of 64 samples elsewhere than the built-in has them
  export       runs/cpu-tiny/export
`
	if got := Summary(full); got != want {
		t.Errorf("want\n%s\ngot\n%s", want, got)
	}
	full.AcceptanceNonlooping, full.LoopingShare, full.Restored = nil, f(1), &admin.RestoreStatus{Lineage: 2, Step: 8, Undone: 3}
	if got := Summary(full); !strings.Contains(got, "  all 24 prompts loop: their texts are easy to guess\n") || !strings.Contains(got, "  restored     lineage 2 goes on from step 8; 3 decided steps are trained again\n") {
		t.Errorf("all loop, and restored: got\n%s", got)
	}
	refused := admin.Summary{Name: "x", Exit: 3, ExitReason: "a long reason"}
	if got := Summary(refused); got != "run x ended with exit 3, before any step\n" {
		t.Errorf("got %q", got)
	}
	no := false
	full.Lossless = &no
	if !strings.Contains(Summary(full), "NOT lossless") {
		t.Error("a loss must be seen")
	}
	poor := admin.Summary{Name: "x", Exit: 93, ExitReason: "nothing was trained", Skipped: 3, Degraded: []admin.Reason{{Name: "checkpoint", Detail: "disk full"}}, Failures: []runner.Failure{{Worker: drafter1, Generation: 1, Message: "no row"}, {Worker: drafter1, Generation: 2, Message: "no row", Hint: "make one"}}}
	want = "run x ended with exit 93: nothing was trained\n  trained      0 steps, 0 rows, 0 samples, 0 tokens\n  skipped      3 samples\n" +
		"  degraded     checkpoint: disk full\n  deaths       2, see `dflash-runner logs --failure`\n"
	if got := Summary(poor); !strings.HasPrefix(got, want) || !strings.Contains(got, "drafter/1.2 (") || !strings.Contains(got, "  no row\n  hint: make one\n") {
		t.Errorf("want, with the report of the last death,\n%s\ngot\n%s", want, got)
	}
	if poor.Exit = 1; strings.Contains(Summary(poor), "make one") {
		t.Error("a report stands in the summary of a run that may be tried again")
	}
}

// TestSummaryOfAStop says where it can go on; an error's hint is said elsewhere.
func TestSummaryOfAStop(t *testing.T) {
	stop := admin.Summary{Name: "x", Exit: 75, ExitReason: "interrupted", Checkpoint: "step-8", Hint: "go on\nthere", Next: "go on\nthere"}
	if got := Summary(stop); !strings.HasSuffix(got, "  checkpoint   step-8\n  next         go on there\n") {
		t.Errorf("got\n%s", got)
	}
	stop.Exit = 1
	if got := Summary(stop); !strings.HasSuffix(got, "  next         go on there\n") {
		t.Errorf("a failure that may be retried: got\n%s", got)
	}
	stop.Next = ""
	if got := Summary(stop); strings.Contains(got, "go on") {
		t.Errorf("got\n%s", got)
	}
}

func TestFailure(t *testing.T) {
	got := strings.Join(Failure(runner.Failure{Worker: drafter1, Generation: 2, Role: runner.Drafter, Device: "cpu", Cause: runner.CauseOOM, Message: "killed\nfor memory",
		Hint: "use fewer slots", At: time.Now(), Signal: "SIGKILL", OOMKilled: "yes", LastOrder: "train", LastSignMS: 1500, PeakBytes: 2 << 30,
		Traceback: []string{"File x"}, Stderr: []string{"bye\u001b[0m"}}), "\n")
	for _, want := range []string{"drafter/1.2 (drafter, cpu) died at ", ": oom\n", "  killed for memory\n", "hint: use fewer slots", "signal SIGKILL",
		"killed for memory: yes", "last order: train", "last sign of life 1.5s before", "peak memory 2048 MiB", "traceback:\n    File x", "stderr:\n    bye[0m"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "exit code") || strings.Contains(got, "stdout") {
		t.Errorf("want nothing that is not there:\n%s", got)
	}
}

func TestText(t *testing.T) {
	got := Text(midway())
	if strings.Contains(got, "Ctrl-C") || !strings.Contains(got, "step 180/400") {
		t.Errorf("got\n%s", got)
	}
}

// Why a run was refused is an error of whoever started it, and the status of all
// others.
func TestARefusedRunsStatusSaysWhy(t *testing.T) {
	s, code := midway(), runner.ExitPreflight
	s.State, s.Exit, s.ExitReason = admin.Ended, &code, "no such GPU"
	if got := Text(s); !strings.HasSuffix(got, "run cpu-tiny: ended with exit 3: no such GPU\n") {
		t.Errorf("got\n%s", got)
	}
	if got := ownEndLine(s); got != "run cpu-tiny: ended with exit 3" {
		t.Errorf("its own end: got %q", got)
	}
}
