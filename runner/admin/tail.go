package admin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"
)

// maxLine bounds a line of a log or of events.jsonl; longer ones are cut there,
// visibly.
const maxLine = 1 << 20

// tailEvery is how often a followed file is looked at.
const tailEvery = 100 * time.Millisecond

// Tail yields the lines of a file without their ends, after skipping some; with
// follow it waits for more, and for the file itself, until ctx is done or over
// reports true. A last line without an end is yielded once nothing follows.
// An error of reading is yielded last.
func Tail(ctx context.Context, path string, skip uint64, follow bool, over func() bool) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		t := tail{path: path, skip: skip, yield: yield}
		defer t.close()
		for {
			done := !follow || ctx.Err() != nil || over != nil && over()
			if !t.drain(done) || done {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(tailEvery):
			}
		}
	}
}

type tail struct {
	path  string
	skip  uint64
	yield func([]byte, error) bool
	file  *os.File
	r     *bufio.Reader
	part  []byte // of a line whose end is not there yet
	cut   int    // bytes of it that were left out
}

func (t *tail) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// drain yields what there is; last says that nothing will follow. It reports
// whether to go on.
func (t *tail) drain(last bool) bool {
	if t.file == nil {
		f, err := os.Open(t.path)
		if errors.Is(err, os.ErrNotExist) && !last {
			return true
		}
		if err != nil {
			return t.yield(nil, err) && false
		}
		t.file, t.r = f, bufio.NewReaderSize(f, 64<<10)
	}
	for {
		piece, err := t.r.ReadSlice('\n')
		t.take(piece)
		switch {
		case err == nil:
			if !t.emit() {
				return false
			}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return !last || len(t.part) == 0 || t.emit()
		default:
			return t.yield(nil, err) && false
		}
	}
}

// take adds to the line, up to its bound.
func (t *tail) take(piece []byte) {
	piece = bytes.TrimSuffix(piece, []byte("\n"))
	n := min(len(piece), maxLine-len(t.part))
	t.part = append(t.part, piece[:n]...)
	t.cut += len(piece) - n
}

// emit yields the line that is complete.
func (t *tail) emit() bool {
	line := t.part
	if t.cut > 0 {
		line = fmt.Appendf(line, " [%d bytes cut]", t.cut)
	}
	t.part, t.cut = nil, 0
	if t.skip > 0 {
		t.skip--
		return true
	}
	return t.yield(line, nil)
}
