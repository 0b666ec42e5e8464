package up

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
)

// failuresFile holds the reports of a run's deaths, one JSON object a line,
// through all lives of its supervisor.
const failuresFile = "failures.jsonl"

// keepDeaths bounds the reports that are kept of a run; the oldest go first.
const keepDeaths = 50

// deaths keeps the reports of a run's deaths in its directory.
type deaths struct {
	earlier []runner.Failure // of earlier lives; never changed
	file    *os.File
	queue   chan runner.Failure
	done    chan struct{} // closed when the writer has ended
	trouble func(error)   // told once of a report that was not kept; must not block

	mu     sync.Mutex // guards below
	closed bool
	told   sync.Once
}

// openDeaths reads what earlier lives left at path, bounds it, and appends from
// then on. torn counts lines that cannot be read, such as one that a crash cut.
func openDeaths(path string, trouble func(error)) (d *deaths, torn int, err error) {
	d = &deaths{queue: make(chan runner.Failure, keepDeaths), done: make(chan struct{}), trouble: trouble}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, runner.Errorf(runner.Unavailable, "read failures: %w", err)
	}
	lines := 0
	for line := range bytes.Lines(text) {
		var f runner.Failure
		if lines++; json.Unmarshal(line, &f) != nil {
			torn++
			continue
		}
		d.earlier = append(d.earlier, f)
	}
	d.earlier = newestDeaths(d.earlier)
	if len(d.earlier) < lines || len(text) > 0 && text[len(text)-1] != '\n' {
		if err := writeDeaths(path, d.earlier); err != nil {
			return nil, torn, err
		}
	}
	if d.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return nil, torn, runner.Errorf(runner.Unavailable, "open failures: %w", err)
	}
	go d.write() // ends when close closes the queue; close waits for it
	return d, torn, nil
}

// newestDeaths gives the last of the reports, as many as are kept.
func newestDeaths(all []runner.Failure) []runner.Failure { return all[max(0, len(all)-keepDeaths):] }

func writeDeaths(path string, all []runner.Failure) error {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	for _, f := range all {
		if err := w.Encode(f); err != nil {
			return runner.Errorf(runner.Internal, "write failures: %w", err)
		}
	}
	if err := renameio.WriteFile(path, b.Bytes(), 0o600); err != nil {
		return runner.Errorf(runner.Unavailable, "write failures: %w", err)
	}
	return nil
}

// with gives the reports of earlier lives and those of this one. Of a nil one
// there are no earlier.
func (d *deaths) with(now []runner.Failure) []runner.Failure {
	if d == nil {
		return now
	}
	return newestDeaths(slices.Concat(d.earlier, now))
}

// observe keeps the report that an event brings. From any goroutine, without
// waiting for the disk.
func (d *deaths) observe(e runner.Event) {
	if d == nil || e.Failure == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return // the loop is over: nothing dies any more
	}
	select {
	case d.queue <- *e.Failure:
	default:
		d.fail(runner.Errorf(runner.Exhausted, "keep failure of %v: the disk is too slow", e.Failure.Worker))
	}
}

func (d *deaths) fail(err error) { d.told.Do(func() { d.trouble(err) }) }

// write is the one writer. A report is one write, so that a crash tears the last.
func (d *deaths) write() {
	defer close(d.done)
	w := bufio.NewWriter(d.file)
	for f := range d.queue {
		err := json.NewEncoder(w).Encode(f)
		if err = errors.Join(err, w.Flush()); err != nil {
			d.fail(runner.Errorf(runner.Unavailable, "keep failure of %v: %w", f.Worker, err))
			w.Reset(d.file)
		}
	}
}

// close writes what is queued.
func (d *deaths) close() error {
	d.mu.Lock()
	d.closed = true
	close(d.queue)
	d.mu.Unlock()
	<-d.done
	return d.file.Close()
}
