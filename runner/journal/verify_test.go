package journal

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

var update = flag.Bool("update", false, "write the golden journal anew")

func TestVerify(t *testing.T) {
	h := whole(t)
	r, err := Verify(write(t, h.out, rollBytes), h.facts)
	if err != nil {
		t.Fatal(err)
	}
	if r.Committed != 8 || r.Lineage != 3 || r.Lives != 2 || r.Excluded != 2 || r.Skipped == 0 || r.Repeated != 2 || r.Checkpoints != 2 || !r.Ended || r.Epochs < 1 || len(r.Warnings) != 0 {
		t.Errorf("got %+v", r)
	}
	if want := fmt.Sprintf("%x", h.plans.chain(8)); r.Chain != want {
		t.Errorf("chain: got %s, want %s", r.Chain, want)
	}
}

// Any prefix of a run's records is what a run that was killed leaves.
func TestVerifyPrefix(t *testing.T) {
	h := whole(t)
	for n := 1; n <= len(h.out); n++ {
		if _, err := Verify(write(t, h.out[:n], rollBytes), h.facts); err != nil {
			t.Errorf("first %d records: %v", n, err)
		}
	}
}

// frames takes a segment apart: offsets of its frames, and its end.
func offsets(t testing.TB, b []byte) []int {
	t.Helper()
	var at []int
	for i := headerBytes; i < len(b); {
		f, err := parseFrame(b[i:])
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, i)
		i += f.size
	}
	return append(at, len(b))
}

// Records dropped, doubled, swapped or altered where they lie.
func TestVerifyRefusesChangedFrames(t *testing.T) {
	h := whole(t)
	b := readFile(t, filepath.Join(write(t, h.out, rollBytes), segmentName(1)))
	at := offsets(t, b)
	refused := func(name string, changed []byte) {
		t.Helper()
		dir := oneSegment(t, changed)
		if _, err := Verify(dir, h.facts); runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), filepath.Join(dir, segmentName(1))) || !strings.Contains(err.Error(), "at byte ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for i := range len(at) - 1 {
		frame := b[at[i]:at[i+1]]
		if i < len(at)-2 { // without its last record it is the journal of a killed run
			refused(fmt.Sprintf("record %d dropped", i+1), slices.Concat(b[:at[i]], b[at[i+1]:]))
			refused(fmt.Sprintf("records %d and %d swapped", i+1, i+2), slices.Concat(b[:at[i]], b[at[i+1]:at[i+2]], frame, b[at[i+2]:]))
		}
		refused(fmt.Sprintf("record %d doubled", i+1), slices.Concat(b[:at[i+1]], frame, b[at[i+1]:]))
		for _, j := range []int{4, 8, 24, 25, len(frame) - 1} { // checksum, number, type, payload
			changed := slices.Clone(b)
			changed[at[i]+min(j, len(frame)-1)] ^= 0x10
			refused(fmt.Sprintf("record %d altered at %d", i+1, j), changed)
		}
	}
	for j := range headerBytes {
		changed := slices.Clone(b)
		changed[j] ^= 1
		refused(fmt.Sprintf("header altered at %d", j), changed)
	}
}

// The same with numbers and checksums set right again: what the records say
// gives it away, for every record that decides anything.
func TestVerifyRefusesChangedRecords(t *testing.T) {
	h := whole(t)
	try := func(name string, records []runner.Record) {
		t.Helper()
		if r, err := Verify(write(t, records, rollBytes), h.facts); err == nil {
			t.Errorf("%s: verified: %+v", name, r)
		}
	}
	for i, r := range h.out {
		switch r.(type) {
		case runner.CheckpointRecord, runner.EvaluationRecord:
			continue // told to people; a checkpoint's own file vouches for it
		}
		name := fmt.Sprintf("record %d, %s", i+1, runner.RecordType(r))
		if i < len(h.out)-1 && !couldBeMissing(h, i) {
			try(name+" dropped", slices.Delete(slices.Clone(h.out), i, i+1))
		}
		if _, start := r.(runner.StartRecord); !start || i == 0 { // the second life may have died at once, and a third begun
			try(name+" doubled", slices.Insert(slices.Clone(h.out), i, r))
		}
		for _, alter := range alterations(r) {
			changed := slices.Clone(h.out)
			changed[i] = alter.to
			try(name+" with another "+alter.what, changed)
		}
	}
}

// couldBeMissing reports whether a run might have gone the same way without
// the record: then only its number tells that it is gone.
func couldBeMissing(h *history, i int) bool {
	switch r := h.out[i].(type) {
	case runner.StartRecord: // all drafters died, and not the supervisor
		return i > 0
	case runner.PlanRecord: // planned after a skip instead of before
		_, skipNext := h.out[i+1].(runner.SkipRecord)
		return skipNext
	case runner.CommitRecord: // undone by the next restore
		next, ok := h.out[i+1].(runner.RestoreRecord)
		if _, plan := h.out[i+1].(runner.PlanRecord); plan {
			next, ok = h.out[i+3].(runner.RestoreRecord)
		}
		return ok && next.Step < r.Step
	}
	return false
}

type alteration struct {
	what string
	to   runner.Record
}

// alterations gives r with each of its fields changed in turn, as far as the
// files can tell.
func alterations(r runner.Record) (out []alteration) {
	v := reflect.ValueOf(r)
	for i := range v.NumField() {
		c := reflect.New(v.Type()).Elem()
		c.Set(v)
		f := c.Field(i)
		what := v.Type().Field(i).Name
		switch {
		case what == "Manifest", what == "Reason", what == "Code", what == "Weight", what == "Norm":
			continue // only a repeated commit tells, below
		case f.CanInt():
			f.SetInt(f.Int() + 1)
		case f.CanUint():
			f.SetUint(f.Uint() + 1)
		case f.Kind() == reflect.Array:
			f.Index(3).SetUint(f.Index(3).Uint() ^ 1)
		case f.Kind() == reflect.Slice && f.Len() > 1:
			s := reflect.AppendSlice(reflect.MakeSlice(f.Type(), 0, 0), f.Slice(1, f.Len())) // the first one gone
			f.Set(s)
		case what == "Plan":
			p := v.Interface().(runner.PlanRecord)
			for name, edit := range map[string]func(*runner.StepPlan){
				"step": func(s *runner.StepPlan) { s.Step++ }, "epoch": func(s *runner.StepPlan) { s.Epoch++ },
				"rate": func(s *runner.StepPlan) { s.LR = math.Nextafter(s.LR, 1) },
				"rank": func(s *runner.StepPlan) { s.Rows = slices.Clone(s.Rows); slices.Reverse(s.Rows) },
			} {
				q := p
				edit(&q.Plan)
				out = append(out, alteration{name, q})
			}
			continue
		default:
			continue
		}
		out = append(out, alteration{what, c.Interface().(runner.Record)})
	}
	return out
}

func TestVerifyComparesRepeatedSteps(t *testing.T) {
	h := whole(t)
	last := -1
	for i, r := range h.out {
		if c, ok := r.(runner.CommitRecord); ok && c.Step == 3 {
			last = i
		}
	}
	for name, edit := range map[string]func(*runner.CommitRecord){
		"norm": func(c *runner.CommitRecord) { c.Norm ^= 1 },
		"loss": func(c *runner.CommitRecord) {
			c.Rows = slices.Clone(c.Rows)
			c.Rows[0].Numerator = math.Nextafter(c.Rows[0].Numerator, 9)
		},
	} {
		records := slices.Clone(h.out)
		c := records[last].(runner.CommitRecord)
		edit(&c)
		records[last] = c
		dir := write(t, records, rollBytes)
		if _, err := Verify(dir, h.facts); err == nil || !strings.Contains(err.Error(), "step 3 was committed in lineages 1 and 3 with other bits") {
			t.Errorf("%s: got %v", name, err)
		}
		f := h.facts
		f.BitIdentical = false
		if _, err := Verify(dir, f); err != nil {
			t.Errorf("%s, not bit-identical: %v", name, err)
		}
	}
}

func TestVerifyRefusesOtherFacts(t *testing.T) {
	h := whole(t)
	dir := write(t, h.out, rollBytes)
	f := h.facts
	f.Manifest = &runner.Digest{8}
	if _, err := Verify(dir, f); err == nil || !strings.Contains(err.Error(), "want manifest") {
		t.Errorf("another manifest: got %v", err)
	}
	f = h.facts
	f.Config.Anchors++
	if _, err := Verify(dir, f); err == nil {
		t.Error("another configuration verified")
	}
}

func TestRecover(t *testing.T) {
	h := whole(t)
	var v Recover
	for _, r := range h.out {
		if err := v.Visit(Entry{Record: r}); err != nil {
			t.Fatal(err)
		}
	}
	s := v.State()
	if s.Committed != 8 || s.Lineage != 3 || !s.Excluded || len(s.Commits) != 8 || len(s.Checkpoints) != 2 || len(s.Evaluations) != 2 || s.Skipped == 0 || s.Ended == nil || s.Ended.Code != 75 {
		t.Errorf("got %+v", s)
	}
	rows := uint64(0)
	for i, p := range s.Plans {
		if p.Plan.Step != runner.Step(i+1) || p.Chain != h.plans.chain(p.Plan.Step) {
			t.Errorf("plan %d: step %d, chain %x", i+1, p.Plan.Step, p.Chain)
		}
		rows += uint64(len(p.Rows))
	}
	if s.Rows != rows {
		t.Errorf("rows: got %d, want %d", s.Rows, rows)
	}
	if err := v.Visit(Entry{File: "f", Record: runner.CommitRecord{Step: 10}}); err == nil {
		t.Error("a commit out of turn was taken")
	}
}

// A skip whose plan a crash swallowed did not happen: the row is trained.
func TestVerifySkipCutOff(t *testing.T) {
	h := newHistory(t)
	h.start()
	h.exclude()
	h.plan()
	h.plan()
	n := len(h.out)
	h.skip(h.plans.of(1).Rows[0].Row)
	skip, revised, later := h.out[n], h.out[n+1], h.out[n+2]
	for name, kept := range map[string][]runner.Record{"before its plan": {skip}, "before the later plans": {skip, revised}} {
		g := newHistory(t)
		g.start()
		g.exclude()
		g.plan()
		g.plan()
		g.out = append(g.out, kept...)
		if len(kept) > 1 {
			g.plans.put(h.plans.steps[0])
		}
		g.start()
		g.restore(0)
		g.commit()
		g.commit()
		if _, err := Verify(write(t, g.out, rollBytes), g.facts); err != nil {
			t.Errorf("cut off %s: %v", name, err)
		}
	}
	h.out = append(h.out[:n:n], skip, later, revised)
	if _, err := Verify(write(t, h.out, rollBytes), h.facts); err == nil {
		t.Error("plans in the wrong order verified")
	}
}

// Golden: journals of format 1 are read by every later build.
func TestGolden(t *testing.T) {
	dir := filepath.Join("testdata", "format1")
	h := whole(t)
	if *update {
		b := readFile(t, filepath.Join(write(t, h.out, rollBytes), segmentName(1)))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, segmentName(1)), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, s, err := load(dir)
	if err != nil || len(got) != len(h.out) || s.Torn != nil {
		t.Fatalf("read %d of %d records: %v", len(got), len(h.out), err)
	}
	for i, e := range got {
		if !reflect.DeepEqual(e.Record, h.out[i]) {
			t.Errorf("record %d: got %+v, want %+v", i+1, e.Record, h.out[i])
		}
	}
	if _, err := Verify(dir, h.facts); err != nil {
		t.Error(err)
	}
}
