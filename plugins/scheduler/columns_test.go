package scheduler

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// table is proto/golden/columns.json, which the host packs, and the Python SDK
// unpacks too.
func table(t testing.TB) (pools [][]Candidate, messages []*schedulerv1.Columns) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "proto", "golden", "columns.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Columns []struct {
			Pool    [][5]uint32
			Message string
		}
	}
	if err := json.Unmarshal(text, &read); err != nil || len(read.Columns) == 0 {
		t.Fatalf("got %d cases, %v", len(read.Columns), err)
	}
	for _, c := range read.Columns {
		pool := []Candidate{}
		for _, p := range c.Pool {
			pool = append(pool, Candidate{Sample: runner.Sample(p[0]), Tokens: p[1], Supervised: p[2], Anchors: p[3], Source: int(p[4])})
		}
		raw, err := hex.DecodeString(c.Message)
		m := &schedulerv1.Columns{}
		if err != nil || proto.Unmarshal(raw, m) != nil {
			t.Fatalf("%s is no message", c.Message)
		}
		pools, messages = append(pools, pool), append(messages, m)
	}
	return pools, messages
}

func TestColumnsOfTheTable(t *testing.T) {
	pools, messages := table(t)
	for i, m := range messages {
		if got, err := fromColumns(m); err != nil || !slices.Equal(got, pools[i]) {
			t.Errorf("want %v, got %v, %v", pools[i], got, err)
		}
	}
}

// TestColumnsAreWhole: what does not fit is refused, with where and what.
func TestColumnsAreWhole(t *testing.T) {
	for says, spoil := range map[string]func(*schedulerv1.ArrangeRequest){
		"columns: tokens: want 1, 2 or 4 bytes for each of 2 places, got 3 bytes":          func(q *schedulerv1.ArrangeRequest) { q.Columns.Tokens = []byte{1, 2, 3} },
		"columns: anchors: want 1, 2 or 4 bytes for each of 2 places, got 0 bytes":         func(q *schedulerv1.ArrangeRequest) { q.Columns.Anchors = nil },
		"columns: sample: want 1, 2 or 4 bytes for each of 4294967295 places, got 2 bytes": func(q *schedulerv1.ArrangeRequest) { q.Columns.Places = 1<<32 - 1 },
		"columns: supervised: want 1, 2 or 4 bytes for each of 2 places, got 16 bytes":     func(q *schedulerv1.ArrangeRequest) { q.Columns.Supervised = make([]byte, 16) },
		"pool place 1: want one of 1 sources, got 1":                                       func(q *schedulerv1.ArrangeRequest) { q.Columns.Source = []byte{0, 1} },
		"pool place 0: want one of 1 sources, got 256":                                     func(q *schedulerv1.ArrangeRequest) { q.Columns.Source = []byte{0, 1, 0, 0} },
		"want a pool or columns, got both":                                                 func(q *schedulerv1.ArrangeRequest) { q.Pool = &schedulerv1.Pool{} },
	} {
		q := &schedulerv1.ArrangeRequest{Count: 1, Sources: []*schedulerv1.Source{{Name: "a"}}, Columns: &schedulerv1.Columns{Places: 2,
			Sample: []byte{4, 5}, Tokens: []byte{8, 9}, Supervised: []byte{1, 2}, Anchors: []byte{1, 1}, Source: []byte{0, 0}}}
		if got, err := arrangeRequest(q); err != nil || len(got.Pool) != 2 {
			t.Fatalf("got %+v, %v", got, err)
		}
		spoil(q)
		if _, err := arrangeRequest(q); err == nil || !strings.Contains(err.Error(), says) || reason(err).Kind != runner.Invalid {
			t.Errorf("want %q, got %v", says, err)
		}
	}
}

// FuzzQuestion: whatever comes on a stream is answered in kind or refused, in
// memory of a constant factor of its length, whatever it says it holds.
func FuzzQuestion(f *testing.F) {
	_, messages := table(f)
	for _, m := range messages {
		add(f, &schedulerv1.ArrangeRequest{Count: 2, Sources: []*schedulerv1.Source{{Name: "a"}, {Name: "b"}}, Columns: m})
	}
	add(f, &schedulerv1.ArrangeRequest{Count: 1<<32 - 1, Left: 1 << 63, Columns: &schedulerv1.Columns{Places: 1<<32 - 1, Sample: []byte{1}}})
	add(f, &schedulerv1.ArrangeRequest{Count: 1<<32 - 1, Sources: []*schedulerv1.Source{{}}, Pool: &schedulerv1.Pool{Sample: []uint32{1}, Tokens: []uint32{1},
		Supervised: []uint32{1}, Anchors: []uint32{1}, Source: []uint32{0}}})
	s := &server{scheduler: both{}}
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		q := &schedulerv1.Question{}
		if proto.Unmarshal(b, q) != nil {
			return
		}
		q.DeadlineMs = 0
		a := s.answerOf(t.Context(), q)
		runtime.ReadMemStats(&after)
		if took, limit := after.TotalAlloc-before.TotalAlloc, uint64(1<<20+len(b)*256); took > limit {
			t.Fatalf("%d bytes took %d bytes, want at most %d", len(b), took, limit)
		}
		if r := a.GetRefusal(); r != nil {
			if r.Kind == runner.Internal.String() {
				t.Fatalf("got %v", r)
			}
			return
		}
		x, r := q.GetArrange(), a.GetArrange()
		if want := min(int(x.GetCount()), max(len(x.GetPool().GetSample()), int(x.GetColumns().GetPlaces()))); len(r.GetSamples())+len(r.GetPacked())/4 != want {
			t.Fatalf("want %d samples, got %v", want, a)
		}
	})
}

func add(f *testing.F, q *schedulerv1.ArrangeRequest) {
	b, err := proto.Marshal(&schedulerv1.Question{Number: 1, Question: &schedulerv1.Question_Arrange{Arrange: q}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
}
