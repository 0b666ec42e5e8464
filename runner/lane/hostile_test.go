package lane

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestI9_MillionFrames: a worker that sends replies without end costs time only
// while it is read, and no memory: what is not read stays in its own socket.
func TestI9_MillionFrames(t *testing.T) {
	frames := 1_000_000
	if testing.Short() {
		frames = 50_000
	}
	ours, theirs := pair(t)
	b, err := EncodeReply(7, testReplies()[2])
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fds, began := openFDs(t), time.Now()
	sent := make(chan error, 1)
	go func() { // ends with its frames, or with the pair; awaited below
		for range frames {
			if _, err := theirs.c.Write(b); err != nil {
				sent <- err
				return
			}
		}
		sent <- theirs.Close()
	}()
	n, peak := 0, before.HeapAlloc
	for {
		if _, _, _, err = ours.Receive(); err != nil {
			break
		}
		if n++; n%10_000 == 0 {
			runtime.ReadMemStats(&after)
			peak = max(peak, after.HeapAlloc)
		}
	}
	if !errors.Is(err, io.EOF) || n != frames {
		t.Fatalf("read %d frames of %d, then %v", n, frames, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	t.Logf("%d frames of %d bytes in %v, %d KiB of heap at the most", n, len(b), took.Round(time.Millisecond), (peak-before.HeapAlloc)>>10)
	if grown := peak - before.HeapAlloc; grown > 16<<20 {
		t.Errorf("the heap grew by %d KiB, want at most 16 MiB", grown>>10)
	}
	if took > 10*time.Minute {
		t.Errorf("it took %v, want at most 10 minutes", took)
	}
	if now := openFDs(t); now > fds {
		t.Errorf("%d descriptors are open, want %d", now, fds)
	}
}

// TestI9_OversizedFrames: a packet above the limit is refused by its length,
// however large, and no memory is taken for it.
func TestI9_OversizedFrames(t *testing.T) {
	const times = 200
	for _, size := range []int{MaxFrame + 1, 2*MaxFrame - 1, 150_000} {
		ours, theirs := pair(t)
		packet := make([]byte, size)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			raw(t, theirs, packet)
			if _, r, _, err := ours.Receive(); runner.KindOf(err) != runner.Invalid || err == nil {
				t.Fatalf("%d bytes: got %v, %v, want kind invalid", size, r, err)
			}
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%d packets of %d bytes took %d KiB, want at most 1 MiB", times, size, took>>10)
		}
	}
}

// TestI9_NegativeNumbers: no field of a handle may be below 0, of whatever width.
func TestI9_NegativeNumbers(t *testing.T) {
	whole, err := EncodeReply(1, runner.Produced{Row: 1, Handle: testHandle()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := DecodeReply(whole); err != nil {
		t.Fatal(err)
	}
	const first = "\xa6hidden\xa3F32\x92" // a tensor is [name, dtype, shape, offset, nbytes]
	for field, prefix := range map[string]string{"row": "\xa3row", "arena": "\xa5arena", "slot": "\xa4slot", "version": "\xa7version", "crc": "\xa3crc",
		"dimension": first, "offset": first + "\xcd\x02\x00\xcd\x01\xe0", "nbytes": first + "\xcd\x02\x00\xcd\x01\xe0\x40"} {
		b := bytes.Clone(whole)
		at := bytes.Index(b, []byte(prefix)) + len(prefix)
		if at < len(prefix) {
			t.Fatalf("%s: not in the frame %x", field, b)
		}
		switch signed := map[byte]byte{0xcc: 0xd0, 0xcd: 0xd1, 0xce: 0xd2, 0xcf: 0xd3}; {
		case b[at] < 0x80:
			b[at] = 0xff // -1
		case signed[b[at]] != 0:
			b[at], b[at+1] = signed[b[at]], 0xff
		default:
			t.Fatalf("%s: want a number, got byte %x", field, b[at])
		}
		if _, r, err := DecodeReply(b); runner.KindOf(err) != runner.Invalid || err == nil {
			t.Errorf("%s below 0: got %+v, %v, want kind invalid", field, r, err)
		}
	}
}
