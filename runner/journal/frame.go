package journal

import (
	"encoding/hex"
	"fmt"
	"hash/crc32"

	"github.com/dflash-runner/dflash-runner/runner"
)

// RunID names a run: a journal is of one run only.
type RunID [16]byte

// String gives the id in hexadecimal.
func (r RunID) String() string { return hex.EncodeToString(r[:]) }

const (
	magic       = "DFJOURN1"
	headerBytes = 8 + 4 + 16 + 32 + 4
	frameBytes  = 4 + 4     // length, CRC
	bodyBytes   = 8 + 8 + 1 // number, durable, type
	maxBody     = 256 << 20 // a horizon of 64 million samples
	maxSegments = 1_000_000 // six digits
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header begins a segment.
type header struct {
	segment uint32
	run     RunID
	before  runner.Digest
}

func (h header) append(b []byte) []byte {
	b = append(b, magic...)
	b = le.AppendUint32(b, h.segment)
	b = append(append(b, h.run[:]...), h.before[:]...)
	return le.AppendUint32(b, crc32.Checksum(b[len(b)-(headerBytes-4):], castagnoli))
}

// journalFormat is how a version of the magic is told to people.
const journalFormat = "dflash-runner-journal/"

// laterVersion reports whether a segment begins as one of a later version does.
// What its header holds, and how long it is, is not known then.
func laterVersion(b []byte) (version string, ok bool) {
	if len(b) < len(magic) || string(b[:7]) != magic[:7] || b[7] <= magic[7] || b[7] > '9' {
		return "", false
	}
	return string(b[7]), true
}

// parseHeader says why a header cannot be read.
func parseHeader(b []byte) (h header, err error) {
	if got, ok := laterVersion(b); ok {
		return h, runner.WrongFormat(journalFormat+magic[7:], journalFormat+got)
	}
	if len(b) < headerBytes {
		return h, fmt.Errorf("want a header of %d bytes, got %d", headerBytes, len(b))
	}
	if string(b[:8]) != magic {
		return h, fmt.Errorf("want magic %q, got %q", magic, b[:8])
	}
	h.segment = le.Uint32(b[8:])
	copy(h.run[:], b[12:])
	copy(h.before[:], b[28:])
	if got, want := le.Uint32(b[60:]), crc32.Checksum(b[:60], castagnoli); got != want {
		return h, fmt.Errorf("want checksum %08x of the header, got %08x", want, got)
	}
	return h, nil
}

// frame is one record as it lies in a segment.
type frame struct {
	number  uint64
	durable uint64
	kind    uint8
	payload []byte
	size    int // of the whole frame
}

func appendFrame(b []byte, number, durable uint64, r runner.Record) []byte {
	at := len(b)
	b = append(b, make([]byte, frameBytes)...)
	b = le.AppendUint64(le.AppendUint64(b, number), durable)
	b = append(b, 0)
	b, kind := encode(b, r)
	b[at+frameBytes+16] = kind
	le.PutUint32(b[at:], uint32(len(b)-at-frameBytes))
	le.PutUint32(b[at+4:], frameSum(b[at:at+4], b[at+frameBytes:]))
	return b
}

// frameSum covers the length as well.
func frameSum(length, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(length, castagnoli), castagnoli, body)
}

// parseFrame reads the frame at the beginning of b, or says why it cannot; its
// size is known where only the checksum is wrong.
func parseFrame(b []byte) (f frame, err error) {
	if len(b) < frameBytes {
		return f, fmt.Errorf("want a frame, got %d bytes", len(b))
	}
	n := le.Uint32(b)
	if n < bodyBytes || n > maxBody {
		return f, fmt.Errorf("want a frame of %d to %d bytes, got length %d", bodyBytes, maxBody, n)
	}
	if uint64(n) > uint64(len(b)-frameBytes) {
		return f, fmt.Errorf("want a frame of %d bytes, got %d before the end", n, len(b)-frameBytes)
	}
	body := b[frameBytes : frameBytes+int(n)]
	if got, want := le.Uint32(b[4:]), frameSum(b[:4], body); got != want {
		return frame{size: frameBytes + int(n)}, fmt.Errorf("want checksum %08x, got %08x", want, got)
	}
	return frame{number: le.Uint64(body), durable: le.Uint64(body[8:]), kind: body[16], payload: body[17:], size: frameBytes + int(n)}, nil
}
