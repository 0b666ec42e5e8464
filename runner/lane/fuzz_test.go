package lane

import (
	"bytes"
	"encoding/hex"
	"runtime"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func seed(f *testing.F) {
	for i, o := range testOrders() {
		b, err := EncodeOrder(uint64(i+1), o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for i, r := range testReplies() {
		b, err := EncodeReply(uint64(i+1), r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, k := range killers {
		b, err := hex.DecodeString(k)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// FuzzScan: what the scan lets through decodes within a constant factor of its
// length in memory, into every struct of the schema.
func FuzzScan(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if Scan(b) != nil {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, into := range []frame{new(produce), new(pull), new(produced), new(voted), new(evaluated), new(failed)} {
			_ = decodeFrame(b, into) // an error is as good as none: only the memory is judged
		}
		runtime.ReadMemStats(&after)
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(1<<20+len(b)*4096); got > limit {
			t.Fatalf("decoding %d bytes took %d bytes, want at most %d", len(b), got, limit)
		}
	})
}

// FuzzDecodeReply: whatever decodes encodes to the same bytes, and all else is
// of kind invalid.
func FuzzDecodeReply(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		seq, r, err := DecodeReply(b)
		if err != nil {
			if runner.KindOf(err) != runner.Invalid {
				t.Fatalf("got kind %s: %v", runner.KindOf(err), err)
			}
			return
		}
		again, err := EncodeReply(seq, r)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("encodes to %x, %v", again, err)
		}
	})
}

// FuzzDecodeOrder: as FuzzDecodeReply.
func FuzzDecodeOrder(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		seq, o, err := DecodeOrder(b)
		if err != nil {
			if runner.KindOf(err) != runner.Invalid {
				t.Fatalf("got kind %s: %v", runner.KindOf(err), err)
			}
			return
		}
		again, err := EncodeOrder(seq, o)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("encodes to %x, %v", again, err)
		}
	})
}
