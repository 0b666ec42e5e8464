package scheduler

import (
	"context"
	"slices"
	"strings"
	"testing"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// least implements no ability, both two of them.
type least struct{ Base }

func (least) Info() Info { return Info{Name: "least", Version: "1"} }

type both struct{ least }

func (both) Arrange(_ context.Context, q ArrangeRequest) ([]runner.Sample, error) {
	return First(q), nil
}

func (both) Assign(context.Context, AssignRequest) (runner.Worker, error) {
	return runner.Worker{}, Errorf(runner.Exhausted, "none left")
}

func TestCapabilitiesAreWhatIsImplemented(t *testing.T) {
	for _, c := range []struct {
		of   Scheduler
		want []Capability
	}{{least{}, nil}, {both{}, []Capability{Arrange, Assign}}} {
		if got := able(c.of); !slices.Equal(got, c.want) {
			t.Errorf("%T: got %v, want %v", c.of, got, c.want)
		}
	}
}

func TestFieldDefaults(t *testing.T) {
	for _, c := range []struct {
		field Field
		err   string
	}{
		{Field{Key: "a", Type: Text, Default: "x"}, ""},
		{Field{Key: "a", Type: Int, Default: 3}, ""},
		{Field{Key: "a", Type: Int, Default: int64(3)}, ""},
		{Field{Key: "a", Type: Number, Default: 0.5}, ""},
		{Field{Key: "a", Type: Bool}, ""}, // the zero value
		{Field{Key: "a", Type: Texts, Default: []string{"x"}}, ""},
		{Field{Key: "a", Type: Text, Required: true}, ""},
		{Field{Key: "a", Type: Int, Default: "x"}, "is no int"},
		{Field{Key: "a", Type: Number, Default: 1}, "is no number"},
		{Field{Key: "a", Type: "map"}, "unknown type"},
	} {
		_, err := c.field.proto()
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: got %v, want %q", c.field, err, c.err)
		}
	}
}

func TestArrangeRequestIsWhole(t *testing.T) {
	whole := func() *schedulerv1.ArrangeRequest {
		return &schedulerv1.ArrangeRequest{Epoch: 1, Count: 1, Left: 2, Total: 2, Sources: []*schedulerv1.Source{{Name: "a"}},
			Pool: &schedulerv1.Pool{Sample: []uint32{4, 5}, Tokens: []uint32{8, 9}, Supervised: []uint32{1, 2}, Anchors: []uint32{1, 1}, Source: []uint32{0, 0}}}
	}
	got, err := arrangeRequest(whole())
	if err != nil || len(got.Pool) != 2 || got.Pool[1] != (Candidate{Sample: 5, Tokens: 9, Supervised: 2, Anchors: 1}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, spoil := range map[string]func(*schedulerv1.ArrangeRequest){
		"lists of unequal lengths": func(q *schedulerv1.ArrangeRequest) { q.Pool.Tokens = q.Pool.Tokens[:1] },
		"an unknown source":        func(q *schedulerv1.ArrangeRequest) { q.Pool.Source[1] = 1 },
	} {
		q := whole()
		spoil(q)
		if _, err := arrangeRequest(q); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestConfigDecodesEveryKeyOrFails(t *testing.T) {
	c, err := NewConfig(7, map[string]any{"steps": int64(3), "name": "x"})
	if err != nil {
		t.Fatal(err)
	}
	var into struct {
		Steps int    `msgpack:"steps"`
		Name  string `msgpack:"name"`
	}
	if err := c.Decode(&into); err != nil || into.Steps != 3 || into.Name != "x" || c.Seed != 7 {
		t.Errorf("got %+v, %v", into, err)
	}
	var less struct {
		Steps int `msgpack:"steps"`
	}
	if err := c.Decode(&less); err == nil {
		t.Error("a key without a field was passed over")
	}
}
