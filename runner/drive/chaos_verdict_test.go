package drive_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
)

// verdictMoods are what is drawn about a death, or what comes of no answer. A
// stop is rare, as it ends the supervisor's life.
var verdictMoods = []string{"restart", "restart", "restart", "restart", "replace", "replace", "replace", "replace", "replace", "replace",
	"stop", "wrong", "wrong", "late", "silent", "behind", "behind", "error", "dies", "twice", "twice", "gone", "gone"}

// What may become of placements, and of verdicts, by the core's events.
var became = []string{"plugin, place: all on one device", "plugin, place: some share a device", "plugin, place: leaves spares", "a verdict's stop: exit 1",
	"verdict: restart", "verdict: replace", "verdict: stop", "verdict too late", "verdict refused", "verdict not awaited"}

// ofTheGone is the reason of verdicts that nobody may take.
const ofTheGone = "of a life that is gone"

var _ drive.FailureScheduler = (*plugin)(nil)

// OnFailure says anything about a death, and now and then more than it is asked.
func (p *plugin) OnFailure(ctx context.Context, q core.Judge) (core.Verdict, error) {
	moods := verdictMoods
	if p.t.number > 12 { // as there are no strikes any more, so that the run comes to its end
		moods = []string{"restart", "replace"}
	}
	r, mood, err := p.question(ctx, "on_failure", moods)
	v := core.Verdict{Decision: core.VerdictRestart, Reason: mood}
	if n := len(q.Spares); n > 0 && mood != "restart" {
		v.Decision, v.Device = core.VerdictReplace, q.Spares[r.IntN(n)]
	}
	say := func(v core.Verdict) { // past the guard, as if the loop had two answers
		time.AfterFunc(upTo(r, 2*time.Millisecond)*time.Duration(r.IntN(30)), func() { p.t.loop.Tell(v) })
	}
	switch mood {
	case "stop":
		v = core.Verdict{Decision: core.VerdictStop, Reason: mood}
	case "wrong":
		v = []core.Verdict{{Decision: "bury"}, {Decision: core.VerdictReplace, Device: "moon"}, {Decision: core.VerdictReplace}, {}}[r.IntN(4)]
	case "behind": // the policy, mostly, and not the deadline
		time.Sleep(upTo(r, 90*time.Millisecond)) // of the bubble's time
	case "twice":
		again := v
		again.Life = q.Life
		if r.IntN(2) == 0 {
			again.Decision, again.Device = core.VerdictReplace, "moon" // the core's to refuse, where it is the first
			p.t.loop.Tell(again)
		}
		say(again)
	case "gone":
		gone := core.Verdict{Life: q.Life, Decision: core.VerdictStop, Reason: ofTheGone}
		gone.Life.Generation--
		say(gone)
		v.Life = gone.Life // not the plugin's to say
	}
	return v, err
}

// placed counts what kinds of places plugins gave workers.
func (w *world) placed() {
	used := map[string]int{}
	for _, x := range w.s.core.Workers {
		used[x.Device]++
	}
	n := len(w.s.core.Workers)
	for what, is := range map[string]bool{"all on one device": len(used) == 1, "some share a device": len(used) > 1 && len(used) < n, "each has one": len(used) == n} {
		if is {
			w.did("plugin, place: " + what)
		}
	}
	if len(used) < len(w.s.core.Spares[runner.Drafter]) {
		w.did("plugin, place: leaves spares")
	}
}

// saw counts what became of verdicts.
func (t *term) saw(e runner.Event) {
	t.w.saw(e)
	if !strings.HasPrefix(e.Name, "verdict") {
		return
	}
	if e.Name != "verdict" {
		t.w.did(e.Name)
		return
	}
	if strings.Contains(e.Message, ofTheGone) {
		t.w.t.Errorf("a verdict about an earlier life was taken: %s", e.Message)
	}
	_, said, _ := strings.Cut(e.Message, ": ")
	decision, _, _ := strings.Cut(said, ":")
	decision, _, _ = strings.Cut(decision, " ")
	t.w.did("verdict: " + decision)
	if decision == core.VerdictStop {
		t.set(func() { t.stopped = true })
	}
}

// stoppedWell wants a life that a verdict ended to have its code and its reason,
// unless the journal failed after it, and no other life to have that reason.
func (t *term) stoppedWell(f core.Finish) {
	t.w.t.Helper()
	says := strings.Contains(f.Reason, "the scheduling plugin ends the run: stop")
	if t.stopped && f.Code != runner.ExitFailed || t.stopped != says && !strings.HasPrefix(f.Reason, "write journal: ") {
		t.w.t.Errorf("a verdict ended the run: %v; want exit %d and its reason just then, got %+v", t.stopped, runner.ExitFailed, f)
	}
	if t.stopped {
		t.excuse[runner.ExitFailed] = "a verdict ended the run"
		t.w.did(fmt.Sprintf("a verdict's stop: exit %d", f.Code))
	}
}
