package host

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// judgements is proto/golden/judgements.json, which the Python SDK's test reads too.
type judgements struct {
	Arrange []struct {
		Count        int
		Pool, Answer []runner.Sample
		Wrong        string
	}
	Assign []struct {
		Row    runner.Row
		Free   []string
		Answer string
		Wrong  string
	}
	Place []struct {
		Colocate bool
		Devices  map[string][2]any // free bytes, health
		Needs    map[string]uint64
		Answer   [][2]string
		Wrong    string
	}
	OnFailure []struct {
		Devices              map[string]string // health
		Decision, To, Reason string
		Times                int // that the reason is repeated
		Wrong                string
	} `json:"on_failure"`
	Name []struct {
		Name string
		Good bool
	}
	Schema []struct {
		Fields []field
		Wrong  string
	}
	Config []struct {
		Fields []field
		Values map[string]any
		Wrong  string
	}
}

type field struct {
	Key, Type string
	Required  bool
	Default   any
	Min, Max  *float64
	OneOf     []string `json:"one_of"`
}

func (f field) proto() *schedulerv1.Field {
	types := map[string]schedulerv1.Type{"text": schedulerv1.Type_TYPE_TEXT, "int": schedulerv1.Type_TYPE_INT, "number": schedulerv1.Type_TYPE_NUMBER,
		"bool": schedulerv1.Type_TYPE_BOOL, "texts": schedulerv1.Type_TYPE_TEXTS}
	out := &schedulerv1.Field{Key: f.Key, Type: types[f.Type], Required: f.Required, Min: f.Min, Max: f.Max, OneOf: f.OneOf, Default: &schedulerv1.Value{}}
	switch v := value(f.Default).(type) {
	case string:
		out.Default.Value = &schedulerv1.Value_Text{Text: v}
	case int64:
		out.Default.Value = &schedulerv1.Value_Int{Int: v}
	case float64:
		out.Default.Value = &schedulerv1.Value_Number{Number: v}
	case bool:
		out.Default.Value = &schedulerv1.Value_Flag{Flag: v}
	case []any:
		out.Default.Value = &schedulerv1.Value_Texts{Texts: &schedulerv1.Texts{}} // the table has empty ones alone
	}
	return out
}

func protos(all []field) (out []*schedulerv1.Field) {
	for _, f := range all {
		out = append(out, f.proto())
	}
	return out
}

// value is a JSON value as the configuration's reader gives it.
func value(v any) any {
	switch x := v.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n
		}
		f, _ := x.Float64()
		return f
	case []any:
		for i := range x {
			x[i] = value(x[i])
		}
	}
	return v
}

// named reads "target/0".
func named(t *testing.T, text string) runner.Worker {
	t.Helper()
	role, rank, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(rank)
	if err != nil {
		t.Fatal(err)
	}
	return runner.Worker{Role: runner.Role(role), Rank: runner.Rank(n)}
}

// TestJudgements: what is wrong with an answer, word for word.
func TestJudgements(t *testing.T) {
	text, err := os.Open(filepath.Join("..", "..", "..", "proto", "golden", "judgements.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	var all judgements
	d := json.NewDecoder(text)
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		t.Fatal(err)
	}
	for i, c := range all.Arrange {
		q := scheduler.ArrangeRequest{Count: c.Count}
		for _, s := range c.Pool {
			q.Pool = append(q.Pool, scheduler.Candidate{Sample: s})
		}
		same(t, "arrange", i, JudgeArrange(q, c.Answer), c.Wrong)
	}
	for i, c := range all.Assign {
		q := scheduler.AssignRequest{Row: c.Row}
		for _, w := range c.Free {
			q.Free = append(q.Free, named(t, w))
		}
		same(t, "assign", i, JudgeAssign(q, named(t, c.Answer)), c.Wrong)
	}
	for i, c := range all.Place {
		q := scheduler.PlaceRequest{Colocate: c.Colocate}
		for id, d := range c.Devices {
			q.Devices = append(q.Devices, scheduler.Device{ID: id, FreeBytes: uint64(value(d[0]).(int64)), Health: d[1].(string)})
		}
		for w, bytes := range c.Needs {
			q.Needs = append(q.Needs, scheduler.Need{Worker: named(t, w), MemoryBytes: bytes})
		}
		var answer []scheduler.Placement
		for _, p := range c.Answer {
			answer = append(answer, scheduler.Placement{Worker: named(t, p[0]), Device: p[1]})
		}
		same(t, "place", i, JudgePlace(q, answer), c.Wrong)
	}
	for i, c := range all.OnFailure {
		q := scheduler.FailureRequest{Worker: runner.Worker{Role: runner.Target}, Device: "a"}
		for id, health := range c.Devices {
			q.Devices = append(q.Devices, scheduler.Device{ID: id, Health: health})
		}
		same(t, "on failure", i, JudgeVerdict(q, scheduler.Verdict{Decision: scheduler.Decision(c.Decision), Device: c.To, Reason: strings.Repeat(c.Reason, max(c.Times, 1))}), c.Wrong)
	}
	for _, c := range all.Name {
		if nameRule.MatchString(c.Name) != c.Good {
			t.Errorf("name %q: want good %t", c.Name, c.Good)
		}
	}
	for i, c := range all.Schema {
		err := checkSchema(protos(c.Fields))
		if err != nil {
			err = fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "config schema: "))
		}
		same(t, "schema", i, err, c.Wrong)
	}
	for i, c := range all.Config {
		for key, v := range c.Values {
			c.Values[key] = value(v)
		}
		_, err := encode(protos(c.Fields), c.Values)
		same(t, "config", i, err, c.Wrong)
	}
	if n := len(all.Arrange) * len(all.Assign) * len(all.Place) * len(all.OnFailure) * len(all.Name) * len(all.Schema) * len(all.Config); n == 0 {
		t.Error("a part of the table is empty")
	}
}

func same(t *testing.T, what string, i int, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("%s %d: want %q, got %q", what, i, want, got)
	}
}
