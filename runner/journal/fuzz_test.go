package journal

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Whatever a segment holds, reading it ends in records or an error that names
// the file; what was read is written again as the same bytes.
func FuzzScan(f *testing.F) {
	b := readFile(f, filepath.Join("testdata", "format1", segmentName(1)))
	f.Add(b)
	f.Add(b[:headerBytes])
	f.Add(b[:len(b)/2])
	at := headerBytes
	for at < len(b) {
		fr, err := parseFrame(b[at:])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(bytes.Clone(b[:headerBytes]), b[at:at+fr.size]...))
		at += fr.size
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &Scanned{}
		again := bytes.Clone(b[:min(len(b), headerBytes)])
		end, err := s.frames("f", b, true, func(e Entry) error {
			fr, err := parseFrame(b[e.Offset:])
			if err != nil {
				t.Fatal(err)
			}
			again = appendFrame(again, e.Number, fr.durable, e.Record)
			return nil
		})
		if err != nil {
			if runner.KindOf(err) != runner.Invalid {
				t.Fatalf("kind %v of %v", runner.KindOf(err), err)
			}
			return
		}
		if len(b) > headerBytes && !bytes.Equal(again, b[:end]) {
			t.Fatalf("read and written again: %d of %d bytes", len(again), end)
		}
	})
}

// Payloads without the frame, whose checksum a fuzzer rarely gets right.
func FuzzDecode(f *testing.F) {
	for _, r := range whole(f).out {
		b, kind := encode(nil, r)
		f.Add(kind, b)
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		r, err := decode(kind, b)
		if err != nil {
			if runner.KindOf(err) != runner.Invalid {
				t.Fatalf("kind %v of %v", runner.KindOf(err), err)
			}
			return
		}
		if again, k := encode(nil, r); k != kind || !bytes.Equal(again, b) {
			t.Fatalf("%+v is written as type %d %x, read from type %d %x", r, k, again, kind, b)
		}
	})
}
