package journal

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// maxSegment bounds what is read into memory at a time: a segment is closed at
// a quarter of it, and holds one record more at most.
const maxSegment = 1 << 30

// Entry is a record and where it lies.
type Entry struct {
	Number uint64 // from 1, through the whole journal
	File   string
	Offset int64
	Record runner.Record
}

// Torn is a tail that a crash left behind in the newest segment.
type Torn struct {
	File   string
	Offset int64
	Bytes  int64
	Reason string
	Whole  bool // a frame of the right length, but with other bytes: a power cut, or a change
}

// Scanned is what a journal is, besides its records.
type Scanned struct {
	Run      RunID
	Segments int
	Records  uint64
	Torn     *Torn // not cut by reading

	last     segment // where a writer goes on
	headless string  // a newest segment without a whole header, which holds nothing
}

// segment is an open segment's state.
type segment struct {
	number uint32
	bytes  int64
	digest [32]byte // of the segment before
	sum    []byte   // the bytes up to the torn tail, for a writer's running digest
}

// Scan reads a journal and gives each record to visit, in order. It changes
// nothing: a torn tail is told about and passed over. Damage anywhere else is
// an error that names the file and the offset.
func Scan(dir string, visit func(Entry) error) (*Scanned, error) {
	files, err := segments(dir)
	if err != nil {
		return nil, err
	}
	s := &Scanned{}
	var before runner.Digest
	for i, name := range files {
		path := filepath.Join(dir, name)
		b, err := readSegment(path)
		if err != nil {
			return nil, err
		}
		newest := i == len(files)-1
		h, err := parseHeader(b)
		if _, later := laterVersion(b); later { // not damaged, and never a torn one that may be cut
			return nil, runner.Errorf(runner.Invalid, "read journal %s: %w", path, err)
		}
		if err != nil && newest && len(b) <= headerBytes { // a crash while it was made
			s.headless = path
			s.Torn = &Torn{File: path, Bytes: int64(len(b)), Reason: err.Error()}
			break
		}
		if err == nil {
			err = s.expect(h, uint32(i+1), before)
		}
		if err != nil {
			return nil, damaged(path, 0, err)
		}
		end, err := s.frames(path, b, newest, visit)
		if err != nil {
			return nil, err
		}
		s.Segments++
		s.last = segment{number: h.segment, bytes: end, digest: before, sum: b[:end]}
		before = sha256.Sum256(b)
	}
	return s, nil
}

// segments lists the files of a journal, which must be numbered without a gap.
func segments(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, runner.Errorf(runner.NotFound, "read journal: %w", err)
	}
	var out []string
	for _, e := range entries {
		stem, ok := strings.CutSuffix(e.Name(), suffix)
		if n, err := strconv.Atoi(stem); ok && err == nil && segmentName(n) == e.Name() {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	for i, name := range out {
		if want := segmentName(i + 1); name != want {
			return nil, runner.Errorf(runner.Invalid, "read journal %s: want segment %s, got %s", dir, want, name).
				WithHint("a segment is missing: copy the whole journal directory")
		}
	}
	if len(out) == 0 {
		return nil, runner.Errorf(runner.NotFound, "read journal %s: there is none", dir)
	}
	return out, nil
}

const suffix = ".journal"

func segmentName(n int) string { return fmt.Sprintf("%06d%s", n, suffix) }

func readSegment(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "read journal: %w", err)
	}
	if info.Size() > maxSegment {
		return nil, runner.Errorf(runner.Invalid, "read journal %s: want at most %d bytes, got %d", path, int64(maxSegment), info.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "read journal: %w", err)
	}
	return b, nil
}

// expect checks a header against its place.
func (s *Scanned) expect(h header, n uint32, before runner.Digest) error {
	switch {
	case h.segment != n:
		return fmt.Errorf("want segment %d, got %d", n, h.segment)
	case n > 1 && h.run != s.Run:
		return fmt.Errorf("want run %s, got %s", s.Run, h.run)
	case h.before != before:
		return fmt.Errorf("want digest %x of the segment before, got %x: that one was changed", before[:6], h.before[:6])
	}
	s.Run = h.run
	return nil
}

// frames visits a segment's records and gives the offset of its end, before
// any torn tail.
func (s *Scanned) frames(path string, b []byte, newest bool, visit func(Entry) error) (int64, error) {
	at := headerBytes
	for at < len(b) {
		f, err := parseFrame(b[at:])
		if err != nil {
			if newest && !s.durableAfter(b[at:]) {
				s.Torn = &Torn{File: path, Offset: int64(at), Bytes: int64(len(b) - at), Reason: err.Error(), Whole: f.size > 0}
				return int64(at), nil
			}
			return 0, damaged(path, at, err)
		}
		if f.number != s.Records+1 || f.durable >= f.number {
			return 0, damaged(path, at, fmt.Errorf("want record %d, got %d", s.Records+1, f.number))
		}
		r, err := decode(f.kind, f.payload)
		if err != nil {
			return 0, damaged(path, at, err)
		}
		s.Records++
		if err := visit(Entry{Number: f.number, File: path, Offset: int64(at), Record: r}); err != nil {
			return 0, err
		}
		at += f.size
	}
	return int64(at), nil
}

// durableAfter reports whether something behind a bad frame proves that the
// record there had been durable: then it is no torn tail. A frame is looked for
// at every offset, since the length of the bad one cannot be trusted.
func (s *Scanned) durableAfter(b []byte) bool {
	for i := 1; i+frameBytes+bodyBytes <= len(b); i++ {
		// Cheap checks first: the number is a little above, the rest is a checksum.
		number := le.Uint64(b[i+frameBytes:])
		if number <= s.Records+1 || number > s.Records+1+uint64(len(b)) {
			continue
		}
		if f, err := parseFrame(b[i:]); err == nil && f.durable > s.Records {
			return true
		}
	}
	return false
}

func damaged(path string, at int, err error) error {
	return runner.Errorf(runner.Invalid, "read journal %s: at byte %d: %w", path, at, err).
		WithHint("the journal was damaged or changed; restore it from a copy, or start a new run from a checkpoint (init_from)")
}
