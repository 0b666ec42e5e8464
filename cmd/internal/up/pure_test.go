package up

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/journal"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

func TestDecide(t *testing.T) {
	use, next := decision{use: true}, decision{next: true}
	refused := func(k runner.Kind, word string) decision { return decision{err: &runner.Error{Kind: k, Msg: word}} }
	for _, c := range []struct {
		f                found
		explicit, resume bool
		want             decision
	}{
		{nothing, false, false, use},
		{nothing, true, false, use},
		{nothing, false, true, refused(runner.NotFound, "nothing to resume")},
		{nothing, true, true, refused(runner.NotFound, "nothing to resume")},
		{live, false, false, refused(runner.Unavailable, "live supervisor")},
		{live, true, false, refused(runner.Unavailable, "live supervisor")},
		{live, false, true, refused(runner.Unavailable, "live supervisor")},
		{live, true, true, refused(runner.Unavailable, "live supervisor")},
		{unfinished, false, false, refused(runner.Invalid, "unfinished")},
		{unfinished, true, false, refused(runner.Invalid, "unfinished")},
		{unfinished, false, true, use},
		{unfinished, true, true, use},
		{finished, false, false, next},
		{finished, true, false, refused(runner.Invalid, "is finished")},
		{finished, false, true, refused(runner.Invalid, "is finished")},
		{finished, true, true, refused(runner.Invalid, "is finished")},
	} {
		got := decide("a", c.f, intent{explicit: c.explicit, resume: c.resume})
		if got.use != c.want.use || got.next != c.want.next || (got.err == nil) != (c.want.err == nil) {
			t.Errorf("%v explicit %v resume %v: %+v, want %+v", c.f, c.explicit, c.resume, got, c.want)
			continue
		}
		if e := got.err; e != nil && (e.Kind != c.want.err.Kind || !strings.Contains(e.Msg, c.want.err.Msg) || e.Hint == "") {
			t.Errorf("%v explicit %v resume %v: error %v, %q, hint %q", c.f, c.explicit, c.resume, e.Kind, e.Msg, e.Hint)
		}
	}
}

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{"a": true, "cpu-tiny": true, "A.b_c-9": true, strings.Repeat("x", 64): true,
		"": false, ".hidden": false, "-x": false, "_x": false, "a/b": false, "..": false, "a b": false, "ä": false, strings.Repeat("x", 65): false} {
		if got := validName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// TestOpenRun: a name is one supervisor's at a time, and a finished run makes way.
func TestOpenRun(t *testing.T) {
	root := t.TempDir()
	d, err := openRun(root, "run", intent{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openRun(root, "run", intent{}); runner.KindOf(err) != runner.Unavailable {
		t.Errorf("a second supervisor: %v", err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openRun(root, "run", intent{}) // it died before it trained anything
	if err != nil || again.path != d.path {
		t.Fatalf("%v: %v", again, err)
	}
	if err := os.WriteFile(again.join("journal", "000001.journal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again.close()
	if _, err := openRun(root, "run", intent{}); runner.KindOf(err) != runner.Invalid {
		t.Errorf("an unfinished run: %v", err)
	}
	if err := admin.WriteSummary(d.path, admin.Summary{Name: "run"}); err != nil {
		t.Fatal(err)
	}
	second, err := openRun(root, "run", intent{})
	if err != nil || second.name != "run-2" || second.path != filepath.Join(root, "run-2") {
		t.Fatalf("%+v: %v", second, err)
	}
	second.close()
	if _, err := openRun(root, "a/b", intent{}); runner.KindOf(err) != runner.Invalid {
		t.Errorf("a name with a slash: %v", err)
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openRun(file, "run", intent{}); err == nil || runner.HintOf(err) == "" {
		t.Errorf("a root that is a file: %v", err)
	}
}

func TestBoard(t *testing.T) {
	now := time.Unix(100, 0)
	b := newBoard(func() time.Time { return now })
	b.begin("target")
	b.progress("target", &jobv1.Progress{Stage: "target", Done: 1, Total: 4, Figures: map[string]float64{"loss": 2}})
	now = now.Add(10 * time.Second)
	all, running := b.picture()
	s := stage(t, all, "target")
	if running != "target" || s.Seconds != 10 || s.ETAS == nil || *s.ETAS != 30 || s.Figures["loss"] != 2 {
		t.Errorf("running %q: %+v", running, s)
	}
	b.done("prepare") // was never begun
	b.done("target")
	b.reused("environment")
	b.begin("target") // does not begin again
	b.begin("train")
	all, running = b.picture()
	for name, want := range map[string]string{"target": admin.StageDone, "environment": admin.StageReused, "train": admin.StageRunning, "prepare": admin.StageWaiting} {
		if got := stage(t, all, name).State; got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if s := stage(t, all, "train"); running != "train" || s.ETAS != nil {
		t.Errorf("without progress: %+v", s)
	}
	for code, want := range map[int]string{runner.ExitDone: admin.StageDone, runner.ExitFailed: admin.StageFailed, runner.ExitStopped: admin.StageStopped} {
		c := newBoard(func() time.Time { return now })
		c.begin("train")
		c.end(code)
		all, running = c.picture()
		if got := stage(t, all, "train").State; got != want || running != "" || stage(t, all, "export").State != admin.StageSkipped {
			t.Errorf("ended with %d: train is %s", code, got)
		}
	}
}

func stage(t *testing.T, all []admin.Stage, name string) admin.Stage {
	for _, s := range all {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no stage %s", name)
	return admin.Stage{}
}

// records is a short history: four steps, the last two undone, then trained again.
func records() (out []runner.Record) {
	plan := func(n runner.Step) runner.PlanRecord {
		return runner.PlanRecord{Plan: runner.StepPlan{Step: n, Epoch: 1, Rows: [][]runner.Row{{runner.Row(n)}}},
			Rows: []runner.RowPlan{{Row: runner.Row(n), Epoch: 1, Bucket: 64, Pieces: []runner.Piece{{Sample: runner.Sample(2 * n), Tokens: 10}, {Sample: runner.Sample(2*n + 1), Tokens: 5}}}}}
	}
	commit := func(n runner.Step, l runner.Lineage) runner.CommitRecord {
		return runner.CommitRecord{Step: n, Lineage: l, Rows: []runner.RowLoss{{Row: runner.Row(n), Numerator: 8 / float64(n), Denominator: 2}}}
	}
	out = append(out, runner.StartRecord{}, runner.ExcludeRecord{Samples: []runner.Sample{0}, Reason: "x"},
		runner.ArrangeRecord{Epoch: 1, Samples: []runner.Sample{2, 3, 4, 5}})
	for n := runner.Step(1); n <= 4; n++ {
		out = append(out, plan(n), commit(n, 1), runner.EvaluationRecord{Step: n, What: "loss"})
		if n == 2 {
			out = append(out, runner.CheckpointRecord{Step: 2, Name: "step-2"})
		}
	}
	return append(out, runner.CheckpointRecord{Step: 4, Name: "step-4"}, runner.StartRecord{Lineage: 1},
		runner.RestoreRecord{Step: 2, Lineage: 2}, commit(3, 2))
}

// TestHistory: what is resumed from is what the journal's own recovery says,
// and the checkpoints that are there.
func TestHistory(t *testing.T) {
	h, v := newHistory(), journal.Recover{}
	for i, r := range records() {
		h.take(r)
		if err := v.Visit(journal.Entry{Number: uint64(i + 1), Record: r}); err != nil {
			t.Fatal(err)
		}
	}
	got, want := h.end(func(c runner.CheckpointRecord) bool { return c.Name == "step-2" }), v.State()
	if got.Lineage != want.Lineage || got.Excluded != want.Excluded || got.Committed != want.Committed || got.Rows != want.Rows ||
		!reflect.DeepEqual(got.Arranged, want.Arranged) || !reflect.DeepEqual(got.Evaluations, want.Evaluations) || len(got.Plans) != len(want.Plans) {
		t.Errorf("resumes from %+v, the journal says %+v", got, want)
	}
	if len(got.Checkpoints) != 1 || got.Checkpoints[0].Name != "step-2" {
		t.Errorf("checkpoints %+v", got.Checkpoints)
	}
	if got.Committed != 3 || got.Rows != 3 || got.Samples != 6 || got.Tokens != 45 || !got.Trained || got.LossFirst != 4 || got.LossLast != 4.0/3 {
		t.Errorf("resumes with %+v", got)
	}
	if c := got.Commits; len(c) != 3 || c[1].Step != 2 || c[2].Step != 3 || c[2].Lineage != 2 {
		t.Errorf("resumes with commits %+v, want those of the surviving lineage", c)
	}
	fresh := newHistory()
	if fresh.any {
		t.Error("nothing is something to resume from")
	}
	fresh.take(runner.StartRecord{}) // killed at once: its lineage began all the same
	if r := fresh.end(nil); !fresh.any || r.Lineage != 1 || r.Committed != 0 {
		t.Errorf("after a start alone: resumes from %+v", r)
	}
}

func TestEvaluations(t *testing.T) {
	all := []runner.EvaluationRecord{
		{Step: 0, What: "plain", Prompts: 4, Tokens: 400, Forwards: 400, BusyUS: 4e6},
		{Step: 0, What: "decode", Prompts: 4, Tokens: 400, Forwards: 400, BusyUS: 8e6, Lossless: true},
		{Step: 5, What: "loss", Numerator: 6, Denominator: 3},
		{Step: 9, What: "decode", Prompts: 4, Tokens: 400, Forwards: 100, BusyUS: 2e6, Lossless: true, Looping: 1, NonLoopingTokens: 300, NonLoopingForwards: 90},
		{Step: 9, What: "loss", Numerator: 3, Denominator: 3},
	}
	var s admin.Summary
	evaluations(&s, all)
	for name, c := range map[string]struct {
		got  *float64
		want float64
	}{"before": {s.AcceptanceBefore, 1}, "after": {s.AcceptanceAfter, 4}, "nonlooping": {s.AcceptanceNonlooping, 300.0 / 90}, "share": {s.LoopingShare, 0.25},
		"plain": {s.PlainTokensPerS, 100}, "decode": {s.DecodeTokensPerS, 200}, "speedup": {s.Speedup, 2}, "loss": {s.HeldoutLoss, 1}} {
		if c.got == nil || math.Abs(*c.got-c.want) > 1e-12 {
			t.Errorf("%s: %v, want %g", name, c.got, c.want)
		}
	}
	if s.Lossless == nil || !*s.Lossless || s.Prompts != 4 || s.PromptsNonlooping != 3 {
		t.Errorf("%+v", s)
	}
	all[0].Prompts = 2 // other texts: nothing to compare
	s = admin.Summary{}
	evaluations(&s, all)
	if s.Speedup != nil {
		t.Errorf("speedup %v over other prompts", *s.Speedup)
	}
	s = admin.Summary{}
	evaluations(&s, nil)
	if s.AcceptanceBefore != nil || s.AcceptanceAfter != nil || s.Speedup != nil || s.HeldoutLoss != nil || s.Lossless != nil {
		t.Errorf("of nothing: %+v", s)
	}
}

// TestAcceptanceNamesItsStep: the newest is of the step that it was measured at.
func TestAcceptanceNamesItsStep(t *testing.T) {
	all := []runner.EvaluationRecord{{Step: 0, What: "decode", Tokens: 8, Forwards: 8}, {Step: 4, What: "decode", Tokens: 9, Forwards: 3}, {Step: 5, What: "loss", Denominator: 1}}
	if a, at := acceptanceOf(all); a == nil || at == nil || *a != 3 || *at != 4 {
		t.Errorf("got %v at %v, want 3 at step 4", a, at)
	}
	if a, at := acceptanceOf(all[2:]); a != nil || at != nil {
		t.Errorf("got %v at %v, want none", *a, *at)
	}
}

func TestRate(t *testing.T) {
	var r rate
	at := time.Unix(1000, 0)
	r.add(at, 100)
	if r.perSecond() != nil {
		t.Error("a rate of one look")
	}
	for i := 1; i <= 40; i++ {
		r.add(at.Add(time.Duration(i)*time.Second), 100+uint64(i)*10)
	}
	if v := r.perSecond(); v == nil || *v != 10 || len(r.at) > 20 {
		t.Errorf("rate %v over %d looks", v, len(r.at))
	}
	r.add(at.Add(41*time.Second), 50) // a restore
	if v := r.perSecond(); v != nil {
		t.Errorf("rate %v over a restore", *v)
	}
}

func TestWeightConstant(t *testing.T) {
	if got := weightConstant(4, 10, 2, 4); got != 40 { // one place, of weight 1
		t.Errorf("block of 2: %g", got)
	}
	want := 2 * 3 * (1 + math.Exp(-0.25) + math.Exp(-0.5))
	if got := weightConstant(2, 3, 4, 4); math.Abs(got-want) > 1e-12 {
		t.Errorf("block of 4: %g, want %g", got, want)
	}
}

// TestPrecision: a worker is told of fp8; the default is left unsaid, so that
// manifests and compile caches are those of runs that could have no other.
func TestPrecision(t *testing.T) {
	for set, want := range map[string]string{"compute_dtype": "", config.PrecisionFP8: "fp8"} {
		if got := precision(set); got != want || strings.Contains(text(&workerv1.Drafter{Precision: got}), "precision") != (want != "") {
			t.Errorf("%s: want %q, got %q", set, want, got)
		}
	}
}

// TestDrawsOfARow: a worker is told of several, and W0 counts them; one is left
// unsaid, as manifests of older runs leave it.
func TestDrawsOfARow(t *testing.T) {
	for draws, want := range map[int]uint32{1: 0, 2: 2, 64: 64} {
		if got := several(draws); got != want {
			t.Errorf("%d draws: want %d, got %d", draws, want, got)
		}
	}
	if one, three := weightConstant(4, 10, 2, 4), weightConstant(4*3, 10, 2, 4); three != 3*one {
		t.Errorf("want W0 three times %g, got %g", one, three)
	}
}

func TestPeakOf(t *testing.T) {
	for text, want := range map[string]uint64{"Name:\tx\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n": 12345 << 10, "VmRSS: 5 kB\n": 0, "": 0} {
		if got := peakOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if peak() == 0 {
		t.Error("this process has no peak")
	}
}

// TestHistoryAfterACrashInARevision: step 2 was revised, and the crash came
// before step 3 was written again under its new chain.
func TestHistoryAfterACrashInARevision(t *testing.T) {
	plan := func(step runner.Step, rank0, rank1 runner.Row) runner.PlanRecord {
		p := runner.PlanRecord{Plan: runner.StepPlan{Step: step, Epoch: 1, Rows: [][]runner.Row{{rank0}, {rank1}}}}
		for _, row := range []runner.Row{rank0, rank1} {
			if row > 0 {
				p.Rows = append(p.Rows, runner.RowPlan{Row: row, Epoch: 1, Bucket: 8, Pieces: []runner.Piece{{Sample: runner.Sample(row), Tokens: 8, Anchors: 1}}})
			}
		}
		return p
	}
	chained := func(prev runner.Chain, p runner.PlanRecord) runner.PlanRecord {
		p.Chain = rows.Chain(prev, rows.Step{Plan: p.Plan, Rows: p.Rows})
		return p
	}
	one := chained(runner.Chain{}, plan(1, 1, 2))
	two := chained(one.Chain, plan(2, 3, 4))
	three := chained(two.Chain, plan(3, 5, 6))
	revised := chained(one.Chain, plan(2, 0, 4))
	skip := runner.SkipRecord{Step: 2, Row: 3, Samples: []runner.Sample{3}, Draws: []uint32{0}, Reason: "loss not finite"}
	end := func(rs ...runner.Record) *core.Resume {
		h := newHistory()
		for _, r := range rs {
			h.take(r)
		}
		return h.end(func(runner.CheckpointRecord) bool { return false })
	}
	got := end(one, two, three, skip, revised)
	if want := chained(revised.Chain, three).Chain; got.Plans[2].Chain != want || got.Plans[2].Chain == three.Chain {
		t.Errorf("step 3 has chain %x, want %x", got.Plans[2].Chain[:4], want[:4])
	}
	if got.Skipped != 1 {
		t.Errorf("skipped %d samples, want 1", got.Skipped)
	}
	if got := end(one, two, three, skip); got.Skipped != 0 || got.Plans[1].Chain != two.Chain {
		t.Errorf("a skip without its revision: skipped %d, want 0", got.Skipped)
	}
}

// TestStagesFollowTheRun: evaluation before training lasts until its last part,
// whatever is trained beside it, and training begins with its first order.
func TestStagesFollowTheRun(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	now := at(0)
	u := &up{board: newBoard(func() time.Time { return now }), state: admin.Starting}
	var v drive.View
	v.Steps, v.Workers = 4, []core.WorkerView{{Certificate: runner.Certificate{Fingerprint: "x"}}}
	v.Gate.Sequence = []runner.Life{{}}
	u.board.begin("launch")
	look := func(seconds int, want string, f func()) []admin.Stage {
		t.Helper()
		now = at(seconds)
		f()
		u.follow(v)
		all, running := u.board.picture()
		var got []string
		for _, s := range all {
			if s.State == admin.StageRunning {
				got = append(got, s.Name)
			}
		}
		if strings.Join(got, " ") != want || want != "" && running != got[0] {
			t.Errorf("at %d s %v run, first %q; want %s", seconds, got, running, want)
		}
		return all
	}
	look(1, "", func() {}) // all are certified, nothing was ordered
	look(11, "evaluate_before", func() { v.Moments.Before = core.Span{Began: at(10), Open: true, Done: 0, Total: 8, What: "loss"} })
	look(13, "evaluate_before train", func() { v.Moments.Training, v.Moments.Before.Done = at(12), 4 })
	all := look(20, "evaluate_before train", func() {
		v.Step, v.Trained, v.Moments.Decided, v.Moments.Before.Done, v.Moments.Before.What = 1, true, at(19), 4, "plain"
	})
	if s := stage(t, all, "evaluate_before"); s.ETAS != nil || s.Phase != "plain" || s.Done != 4 {
		t.Errorf("no prompt was decoded yet, but the stage is %+v", s)
	}
	all = look(61, "train", func() { v.Moments.Before = core.Span{Began: at(10), Ended: at(60), Done: 8, Total: 8} })
	if s := stage(t, all, "evaluate_before"); s.State != admin.StageDone || s.Seconds != 50 || s.Done != 8 {
		t.Errorf("evaluate_before is %+v", s)
	}
	all = look(64, "train", func() { v.Step, v.Moments.Decided = 2, at(63) })
	if s := stage(t, all, "train"); s.ETAS == nil || *s.ETAS != 8 || s.Seconds != 52 {
		t.Errorf("train took 4 s for a step since it goes alone, but is %+v", s)
	}
	all = look(69, "evaluate_after", func() {
		v.Step, v.Moments.Decided, v.Moments.After = 4, at(67), core.Span{Began: at(68), Open: true, Total: 8, What: "loss"}
	})
	if s := stage(t, all, "train"); s.State != admin.StageDone || s.Seconds != 55 {
		t.Errorf("train is %+v", s)
	}
	all = look(80, "", func() { v.Moments.After = core.Span{Began: at(68), Ended: at(78), Done: 8, Total: 8} })
	if s := stage(t, all, "evaluate_after"); s.State != admin.StageDone || s.Seconds != 10 || s.Phase != "" {
		t.Errorf("evaluate_after is %+v", s)
	}
}

// TestDroppedEvaluation: one that a restore dropped does not stay for ever.
func TestDroppedEvaluation(t *testing.T) {
	b := newBoard(time.Now)
	b.evaluation("evaluate_before", core.Span{Began: time.Now(), Open: true}, false)
	b.evaluation("evaluate_before", core.Span{Began: time.Now()}, false)
	all, running := b.picture()
	if s := stage(t, all, "evaluate_before"); s.State != admin.StageSkipped || running != "" {
		t.Errorf("got %+v", s)
	}
}

// TestPhasesAreNoProgress: what a job does before its stage's own work is not
// shown as all of it, and no eta rests on it.
func TestPhasesAreNoProgress(t *testing.T) {
	now := time.Unix(100, 0)
	b := newBoard(func() time.Time { return now })
	report := func(after int, stage string, done, total uint64) {
		now = now.Add(time.Duration(after) * time.Second)
		b.progress("target", &jobv1.Progress{Stage: stage, Done: done, Total: total})
	}
	target := func() admin.Stage {
		all, _ := b.picture()
		return stage(t, all, "target")
	}
	report(0, "corpus", 0, 1)
	report(30, "corpus", 1, 1)
	if s := target(); s.Done != 0 || s.Total != 0 || s.Phase != "corpus" || s.ETAS != nil {
		t.Errorf("preparing: %+v", s)
	}
	report(4, "target", 2, 10)
	if s := target(); s.Done != 2 || s.Total != 10 || s.Phase != "" || s.ETAS == nil || *s.ETAS != 16 || s.Seconds != 34 {
		t.Errorf("at work: %+v", s)
	}
}

// TestChainOfJobs: two jobs of one stage are one count.
func TestChainOfJobs(t *testing.T) {
	b := newBoard(time.Now)
	for i, want := range [][2]uint64{{0, 3}, {1, 3}, {1, 3}, {2, 3}, {3, 3}} {
		switch i {
		case 0:
			b.expect("prepare", 0, 2)
		case 2:
			b.expect("prepare", 1, 0)
		}
		p := &jobv1.Progress{Stage: "prepare", Done: uint64(i), Total: 1}
		if i >= 2 {
			p.Done, p.Total = uint64(i-2), 2
		}
		b.progress("prepare", p)
		all, _ := b.picture()
		if s := stage(t, all, "prepare"); s.Done != want[0] || s.Total != want[1] {
			t.Errorf("report %d: %d of %d, want %v", i, s.Done, s.Total, want)
		}
	}
}

// TestEnvironmentProgress: only downloads are counted; before and after them
// there is no bar and no eta, as there is nothing to judge by.
func TestEnvironmentProgress(t *testing.T) {
	now := time.Unix(100, 0)
	u := &up{board: newBoard(func() time.Time { return now })}
	u.board.begin("environment")
	for _, c := range []struct {
		p           pyenv.Progress
		phase       string
		done, total uint64
		eta         float64
	}{
		{pyenv.Progress{Stage: "wait"}, admin.PhaseElsewhere, 0, 0, 0},
		{pyenv.Progress{Stage: "venv"}, "venv", 0, 0, 0},
		{pyenv.Progress{Stage: "packages", TotalBytes: 50}, "download", 0, 50, 0},
		{pyenv.Progress{Stage: "packages", DoneBytes: 10, TotalBytes: 50}, "download", 10, 50, 40},
		{pyenv.Progress{Stage: "packages", DoneBytes: 50, TotalBytes: 50}, "unpack", 0, 0, 0},
		{pyenv.Progress{Stage: "done"}, "done", 0, 0, 0},
	} {
		now = now.Add(10 * time.Second)
		u.making(c.p)
		all, _ := u.board.picture()
		s, eta := stage(t, all, "environment"), 0.0
		if s.ETAS != nil {
			eta = *s.ETAS
		}
		if s.Phase != c.phase || s.Done != c.done || s.Total != c.total || eta != c.eta {
			t.Errorf("after %+v: %+v, eta %v", c.p, s, eta)
		}
	}
}

// TestStopped: a stop says what it left and the command that goes on.
func TestStopped(t *testing.T) {
	t.Chdir(t.TempDir())
	dir, err := openRun("other runs", "run", intent{})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.close()
	u := &up{dir: dir, options: Options{ConfigPath: "my own.yaml"}}
	check := func(reason, hint string) {
		t.Helper()
		if r, h := u.stopped("interrupted"); r != reason || h != hint {
			t.Errorf("got %q, %q", r, h)
		}
	}
	const none = "interrupted; no step was trained, so there is no checkpoint"
	check(none, "`dflash-runner up -f 'my own.yaml' --name run --runs 'other runs'` begins it anew; there is nothing to resume")
	if err := os.WriteFile(dir.join("config.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check(none, "`dflash-runner up -f 'other runs/run/config.yaml' --name run` begins it anew; there is nothing to resume")
	if err := os.WriteFile(dir.join("journal", "1.journal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check(none, "`dflash-runner up --resume --name run --runs 'other runs'` begins at step 0 again")
	if got := (intent{file: "it's"}).again("x", false); got != `dflash-runner up -f 'it'\''s' --name x` {
		t.Errorf("got %s", got)
	}
	u.options.ConfigPath = ""
	if err := os.Mkdir(dir.join("checkpoints", "step-3"), 0o700); err != nil {
		t.Fatal(err)
	}
	check("interrupted", "go on with `dflash-runner up --resume --name run --runs 'other runs'`")
	for code, want := range map[int]string{runner.ExitStopped: "go on with `dflash-runner up --resume --name run --runs 'other runs'`", runner.ExitFailed: "go on with `dflash-runner up --resume --name run --runs 'other runs'`",
		runner.ExitHopeless: "", runner.ExitDone: ""} {
		if f, next := u.onward(core.Finish{Code: code, Reason: "why"}); f.Reason != "why" || next != want {
			t.Errorf("exit %d: got %q, %q", code, f.Reason, next)
		}
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if got := (intent{root: filepath.Join(wd, "runs")}).again("x", true); got != "dflash-runner up --resume --name x" {
		t.Errorf("in the default directory: %s", got)
	}
}

// TestStopAfterTraining: a stop while the loop is over ends the running job, and
// says where the run stands.
func TestStopAfterTraining(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	u := &up{cancel: cancel, loop: &drive.Loop{}, ended: &core.Finish{}, state: admin.Finishing}
	u.stop(false, "signal interrupt")
	if ctx.Err() == nil {
		t.Error("the export goes on")
	}
	if f := u.stoppedWithout(); f.Code != runner.ExitStopped || f.Reason != "stopped before the export: signal interrupt" {
		t.Errorf("got %+v", f)
	}
	u.ended = nil
	if f := u.stoppedWithout(); f.Reason != "stopped before training: signal interrupt" {
		t.Errorf("got %+v", f)
	}
}
