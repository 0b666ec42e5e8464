package host

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// TestColumnsAreThoseOfTheTable: byte for byte what both SDKs unpack.
func TestColumnsAreThoseOfTheTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "proto", "golden", "columns.json"))
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Columns []struct {
			Pool    [][5]uint32
			Message string
		}
	}
	if err := json.Unmarshal(text, &table); err != nil || len(table.Columns) == 0 {
		t.Fatalf("got %d cases, %v", len(table.Columns), err)
	}
	for _, c := range table.Columns {
		var pool []scheduler.Candidate
		for _, p := range c.Pool {
			pool = append(pool, scheduler.Candidate{Sample: runner.Sample(p[0]), Tokens: p[1], Supervised: p[2], Anchors: p[3], Source: int(p[4])})
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(columnsOf(pool))
		if got := hex.EncodeToString(raw); err != nil || got != c.Message {
			t.Errorf("%v: got %s, %v", c.Pool, got, err)
		}
	}
}

// FuzzArrangement: what a stranger answers is taken as it stands there, or
// refused as invalid, in memory of a constant factor of its length.
func FuzzArrangement(f *testing.F) {
	for _, r := range []*schedulerv1.ArrangeReply{{}, {Samples: []uint32{10, 1 << 31}}, {Packed: []byte{10, 0, 0, 0, 0, 0, 0, 128}},
		{Packed: []byte{1, 2, 3, 4, 5}}, {Samples: []uint32{10}, Packed: []byte{10, 0, 0, 0}}} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x12\xff\xff\xff\xff\x0f")) // packed samples of 4 GiB, none of which came
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var r schedulerv1.ArrangeReply
		if proto.Unmarshal(b, &r) != nil {
			return
		}
		got, err := samplesOf(&r)
		runtime.ReadMemStats(&after)
		if took, limit := after.TotalAlloc-before.TotalAlloc, uint64(1<<20+len(b)*64); took > limit {
			t.Fatalf("%d bytes took %d bytes, want at most %d", len(b), took, limit)
		}
		if err != nil {
			if runner.KindOf(err) != runner.Invalid {
				t.Fatalf("got kind %s: %v", runner.KindOf(err), err)
			}
			return
		}
		var packed []byte
		for _, s := range got {
			packed = append(packed, byte(s), byte(s>>8), byte(s>>16), byte(s>>24))
		}
		if len(r.Packed) > 0 && !bytes.Equal(packed, r.Packed) || len(got) != len(r.Samples)+len(r.Packed)/4 {
			t.Fatalf("got %v of %v", got, &r)
		}
	})
}
