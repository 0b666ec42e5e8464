package drivetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/image"
)

// image copies the state and says so; what is left to do goes on beside.
func (w *Worker) image(l Lane, a ask, o runner.Image, fault Fault) error {
	if o.Step != w.at {
		closeFile(a)
		return l.SendReply(a.seq, stale("image")[0], nil)
	}
	var taken, saved runner.Reply = runner.Taken{Step: o.Step, BusyUS: 1}, runner.Saved{Step: o.Step, Written: o.Write, Parameters: w.state, BusyUS: 1}
	var b []byte
	if o.Write {
		var err error
		if b, err = w.file(int(o.NBytes)); err != nil {
			saved = runner.Failed{Kind: runner.Internal, Message: err.Error()}
		}
	}
	if fault == Lie && w.How%2 == 0 {
		taken = lie(taken, w.How)
	} else if fault == Lie {
		saved = lie(saved, w.How)
	}
	w.beside.Go(func() {
		defer closeFile(a)
		if w.Saving != nil {
			w.Saving(o)
		}
		// A lane that is lost ends the main thread as well.
		_ = l.SendReply(a.seq, w.save(a.file, b, saved), nil)
	})
	return l.SendReply(a.seq, taken, nil)
}

// save writes a copy of the state as a safetensors file of just the size.
func (w *Worker) save(f *os.File, b []byte, r runner.Reply) runner.Reply {
	if s, ok := r.(runner.Saved); ok && s.Written && b != nil {
		if _, err := f.WriteAt(b, 0); err != nil {
			return runner.Failed{Kind: runner.Internal, Message: err.Error()}
		}
		s.Image = sha256.Sum256(b)
		return s
	}
	return r
}

// file lays the state out.
func (w *Worker) file(size int) ([]byte, error) {
	const header = 1024
	n := size - 8 - header
	text, err := json.Marshal(map[string]any{
		"__metadata__": map[string]string{"format": image.Format, "step": strconv.FormatUint(uint64(w.at), 10),
			"chain": hex.EncodeToString(w.chain[:]), "parameters": hex.EncodeToString(w.state[:])},
		"state": map[string]any{"dtype": "U8", "shape": []int{n}, "data_offsets": []int{0, n}},
	})
	if err != nil || len(text) > header {
		return nil, fmt.Errorf("lay out image: %d bytes of header: %w", len(text), err)
	}
	b := binary.LittleEndian.AppendUint64(nil, header)
	b = append(b, text...)
	b = append(b, bytes.Repeat([]byte{' '}, header-len(text))...)
	data := make([]byte, n)
	copy(data, w.state[:])
	return append(b, data...), nil
}

// load takes the state from an image, which may be a checkpoint's file.
func (w *Worker) load(o runner.Load, f *os.File) []runner.Reply {
	h, err := image.ReadHeader(f, o.NBytes)
	if err == nil {
		_, err = f.ReadAt(w.state[:], int64(8+1024))
	}
	if err != nil || h.Step != o.Step || h.Parameters != w.state {
		return one(runner.Failed{Kind: runner.Invalid, Message: fmt.Sprintf("the image is of step %d, state %x: %v", h.Step, w.state[:4], err)})
	}
	w.at, w.chain = h.Step, h.Chain
	return one(runner.Loaded{Step: h.Step, Chain: h.Chain, Parameters: h.Parameters})
}

// Sum is where the ranks of a communicator wait for each other: a rank that
// died leaves the others waiting until they are aborted, as a real one does.
type Sum struct {
	mu    sync.Mutex
	sums  map[string]*sum
	round map[runner.Communicator]int
}

type sum struct {
	there uint32
	total Batch
	whole chan struct{}
}

// wait adds a rank's part and gives the whole; false where it was broken off.
func (s *Sum) wait(c runner.Communicator, world uint32, part Batch, aborted, gone <-chan struct{}) (Batch, bool) {
	s.mu.Lock()
	if s.sums == nil {
		s.sums, s.round = map[string]*sum{}, map[runner.Communicator]int{}
	}
	key := fmt.Sprint(c, " ", s.round[c])
	x := s.sums[key]
	if x == nil {
		x = &sum{whole: make(chan struct{})}
		s.sums[key] = x
	}
	x.total.Add(part)
	if x.there++; x.there == world {
		s.round[c]++
		delete(s.sums, key)
		close(x.whole)
	}
	s.mu.Unlock()
	select {
	case <-x.whole:
		return x.total, true // nobody adds to a whole one
	case <-aborted:
	case <-gone:
	}
	return Batch{}, false
}
