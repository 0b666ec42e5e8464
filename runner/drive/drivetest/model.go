package drivetest

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"os"
	"sync"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
)

// Sizes of what the model works with.
const (
	SlotBytes  = 4096
	ImageBytes = 4096
	payload    = 256
)

// Lane is a worker's end of a lane: *lane.Conn, or a Process's.
type Lane interface {
	ReceiveOrder() (seq uint64, o runner.Order, f *os.File, err error)
	SendReply(seq uint64, r runner.Reply, f *os.File) error
}

// Fault is how a model misbehaves at one order; "" is not at all.
type Fault string

// The faults.
const (
	Die     Fault = "die"     // it ends before it answers
	Hang    Fault = "hang"    // it never answers
	Refuse  Fault = "refuse"  // failed, kind invalid
	Broken  Fault = "broken"  // failed, kind fatal, with a traceback
	Wrong   Fault = "wrong"   // it answers something else
	Outside Fault = "outside" // a handle that leaves its slot; an arena that was not asked for
	Late    Fault = "late"    // it ends after it answered, where it creates
	NaN     Fault = "nan"     // a vote that is not finite
	Drift   Fault = "drift"   // a commit that others do not make so
	Lie     Fault = "lie"     // a reply that fits its order's type and is not true
)

// ErrDied is how Serve ends at the fault Die.
var ErrDied = errors.New("died on purpose")

// Worker is a model of one worker's life.
type Worker struct {
	ID    runner.Worker
	Fault func(o runner.Order) Fault // nil: none
	Sum   *Sum                       // nil: it does not wait for its peers
	Gone  <-chan struct{}            // closed when the process is killed; nil: never
	Wait  func(o runner.Order)       // what an order takes, before it is done; nil: nothing
	How   int                        // which lie it tells
	// Poison is a sample whose loss is not a number, plus one; 0: there is none.
	Poison runner.Sample
	Died   func() // called when it dies while its lane is waited for

	mu      sync.Mutex // guards below
	arenas  map[runner.Arena]mapped
	buffers [2]buffer
	void    uint64        // train and join before this seq are given up
	aborted chan struct{} // closed by the next abort

	at    runner.Step // of the main thread alone, as all below
	chain runner.Chain
	state runner.Digest
	comm  runner.Communicator
	world uint32
	votes []runner.RowLoss
	part  Batch // of this rank's rows of the open step
	total Batch // of all ranks
	bad   bool  // a row of this rank's is poisoned
	plain bool
}

type mapped struct {
	file      *os.File
	slotBytes uint64
}

type ask struct {
	seq   uint64
	order runner.Order
	file  *os.File
}

// Start is the digest of a drafter's parameters before training.
func Start() runner.Digest { return sha256.Sum256([]byte("start")) }

// Serve works orders off until the worker is drained (nil), dies or loses its
// lane. Pulls and aborts are taken at once, others one after another.
func (w *Worker) Serve(l Lane) error {
	w.arenas, w.aborted, w.state = map[runner.Arena]mapped{}, make(chan struct{}), Start()
	defer w.close()
	main := make(chan ask, 1024)
	var wg sync.WaitGroup
	wg.Go(func() { // ends when main is closed
		dead := false
		for a := range main {
			if dead {
				closeFile(a)
			} else if err := w.take(l, a); err != nil {
				dead = true
				w.Died()
			}
		}
	})
	defer wg.Wait()
	defer close(main)
	for {
		seq, o, f, err := l.ReceiveOrder()
		if err != nil {
			return err
		}
		switch o.(type) {
		case runner.Pull, runner.Abort:
			if err := w.take(l, ask{seq, o, f}); err != nil {
				return err
			}
		case runner.Drain:
			if over, err := w.drain(l, seq, o); over || err != nil {
				return err
			}
		default:
			main <- ask{seq, o, f}
		}
	}
}

// drain answers the last order; over says that the worker ends.
func (w *Worker) drain(l Lane, seq uint64, o runner.Order) (over bool, err error) {
	if w.Wait != nil {
		w.Wait(o)
	}
	switch w.faultOf(o) {
	case Hang:
		<-w.Gone
		return true, ErrDied
	case Die:
		return true, ErrDied
	case Refuse, Broken:
		return false, l.SendReply(seq, runner.Failed{Kind: runner.Unavailable, Message: "refused on purpose"}, nil)
	case Lie, Wrong:
		return false, l.SendReply(seq, lie(runner.Drained{}, w.How), nil)
	}
	return true, l.SendReply(seq, runner.Drained{}, nil)
}

// take answers one order.
func (w *Worker) take(l Lane, a ask) error {
	if a.file != nil {
		if _, keeps := a.order.(runner.MapArena); !keeps {
			defer a.file.Close()
		}
	}
	var into *buffer
	if o, ok := a.order.(runner.Pull); ok {
		into = w.reserve(o.Row) // as the order comes, whatever the copy takes
	}
	if w.Wait != nil {
		w.Wait(a.order)
	}
	fault := w.faultOf(a.order)
	if into != nil && (fault == Refuse || fault == Broken) {
		w.filled(into, nil, false)
	}
	switch fault {
	case Die:
		return ErrDied
	case Hang:
		<-w.Gone
		return ErrDied
	case Refuse:
		return l.SendReply(a.seq, runner.Failed{Kind: runner.Invalid, Message: "refused on purpose", Hint: "none"}, nil)
	case Broken:
		return l.SendReply(a.seq, runner.Failed{Kind: runner.Fatal, Message: "broken on purpose", Traceback: []string{"File model, line 1"}}, nil)
	case Wrong:
		return l.SendReply(a.seq, runner.Drained{}, nil)
	}
	if o, ok := a.order.(runner.CreateArena); ok {
		return w.create(l, a.seq, o, fault)
	}
	replies := w.do(a, into, fault)
	if fault == Lie {
		last := len(replies) - 1
		replies[last] = lie(replies[last], w.How)
	}
	for _, r := range replies {
		if err := l.SendReply(a.seq, r, nil); err != nil {
			return err
		}
	}
	return nil
}

// create makes an arena as a target on a GPU does, of host memory: what stays
// of it without this process is the descriptor alone.
func (w *Worker) create(l Lane, seq uint64, o runner.CreateArena, fault Fault) error {
	f, err := arena.Memfd("model arena", uint64(o.Slots)*o.SlotBytes)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.arenas[o.Arena] = mapped{f, o.SlotBytes}
	w.mu.Unlock()
	answer := runner.Created{Arena: o.Arena}
	if fault == Outside || fault == Lie {
		answer.Arena++
	}
	if err := l.SendReply(seq, answer, f); err != nil || fault != Late {
		return err
	}
	return ErrDied
}

func (w *Worker) faultOf(o runner.Order) Fault {
	if w.Fault == nil {
		return ""
	}
	return w.Fault(o)
}

func (w *Worker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.arenas {
		m.file.Close()
	}
}

func closeFile(a ask) {
	if a.file != nil {
		a.file.Close()
	}
}

func one(r runner.Reply) []runner.Reply { return []runner.Reply{r} }

func stale(what string) []runner.Reply {
	return one(runner.Failed{Kind: runner.Stale, Message: what + " does not fit the worker's own state"})
}

// do carries one order out and gives its replies.
func (w *Worker) do(a ask, into *buffer, fault Fault) []runner.Reply {
	switch o := a.order.(type) {
	case runner.MapArena:
		w.mu.Lock()
		w.arenas[o.Arena] = mapped{a.file, o.SlotBytes}
		w.mu.Unlock()
		return one(runner.Mapped{Arena: o.Arena})
	case runner.Produce:
		return w.produce(o, fault)
	case runner.Pull:
		r, body := w.pull(o)
		w.filled(into, body, w.poisoned(o.RowPlan))
		return one(r)
	case runner.Join:
		if w.isVoid(a.seq) {
			return one(runner.Failed{Kind: runner.Canceled, Message: "aborted"})
		}
		if o.Step != w.at || o.Communicator <= w.comm {
			return stale("join")
		}
		w.comm, w.world, w.votes = o.Communicator, o.World, nil
		return one(runner.Joined{Communicator: o.Communicator})
	case runner.Train:
		return w.train(a.seq, o, fault)
	case runner.Commit:
		return w.commit(o, fault)
	case runner.Abort:
		w.mu.Lock()
		w.void = a.seq
		close(w.aborted)
		w.aborted = make(chan struct{})
		w.mu.Unlock()
		return one(runner.Aborted{Step: o.Step, Clean: true})
	case runner.Image:
		return w.image(o, a.file)
	case runner.Load:
		return w.load(o, a.file)
	case runner.Evaluate:
		return w.evaluate(o)
	}
	return one(runner.Failed{Kind: runner.Internal, Message: "unknown order"})
}

func (w *Worker) isVoid(seq uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return seq < w.void
}

// body is what a row's payload is, whoever makes it.
func body(r runner.RowPlan) []byte {
	h := sha256.New()
	for _, p := range r.Pieces {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(p.Sample)<<32|uint64(p.Draw)))
	}
	out := make([]byte, payload)
	for i, seed := 0, h.Sum(nil); i < payload; i++ {
		out[i] = seed[i%len(seed)] ^ byte(i)
	}
	return out
}

// produce writes a row into its slot as proto/lane.md lays it out.
func (w *Worker) produce(o runner.Produce, fault Fault) []runner.Reply {
	w.mu.Lock()
	m, ok := w.arenas[o.Slot.Arena]
	w.mu.Unlock()
	if !ok {
		return stale("produce")
	}
	b := body(o.RowPlan)
	head := make([]byte, 64)
	copy(head, "DFSLOT01")
	binary.LittleEndian.PutUint64(head[8:], uint64(o.Version))
	binary.LittleEndian.PutUint64(head[16:], uint64(o.Row))
	binary.LittleEndian.PutUint64(head[24:], payload)
	crc := crc32.ChecksumIEEE(b)
	binary.LittleEndian.PutUint32(head[32:], crc)
	if _, err := m.file.WriteAt(append(head, b...), int64(uint64(o.Slot.Index)*m.slotBytes)); err != nil {
		return one(runner.Failed{Kind: runner.Internal, Message: err.Error()})
	}
	t := runner.Tensor{Name: "tokens", DType: "U8", Shape: []uint64{payload}, Offset: 64, NBytes: payload}
	if fault == Outside {
		t.Offset = m.slotBytes
	}
	return one(runner.Produced{Row: o.Row, BusyUS: 1, Handle: runner.Handle{Arena: o.Slot.Arena, Slot: o.Slot.Index,
		Version: o.Version, CRC: crc, Tensors: []runner.Tensor{t}}})
}

// poisoned reports whether a row holds the sample whose loss is not a number.
func (w *Worker) poisoned(r runner.RowPlan) bool {
	for _, p := range r.Pieces {
		if p.Sample+1 == w.Poison {
			return true
		}
	}
	return false
}

// pull reads the slot and refuses whatever is not the row; the payload is nil then.
func (w *Worker) pull(o runner.Pull) (runner.Reply, []byte) {
	w.mu.Lock()
	m, ok := w.arenas[o.Handle.Arena]
	w.mu.Unlock()
	if !ok {
		return stale("pull")[0], nil
	}
	b := make([]byte, 64+payload)
	if _, err := m.file.ReadAt(b, int64(uint64(o.Handle.Slot)*m.slotBytes)); err != nil {
		return runner.Failed{Kind: runner.Internal, Message: err.Error()}, nil
	}
	if binary.LittleEndian.Uint64(b[8:]) != uint64(o.Handle.Version) || binary.LittleEndian.Uint64(b[16:]) != uint64(o.Row) {
		return stale("pull")[0], nil
	}
	if string(b[64:]) != string(body(o.RowPlan)) || crc32.ChecksumIEEE(b[64:]) != o.Handle.CRC {
		return runner.Failed{Kind: runner.Internal, Message: "the payload is not the row's"}, nil
	}
	return runner.Pulled{Row: o.Row, BusyUS: 1}, b[64:]
}

func (w *Worker) train(seq uint64, o runner.Train, fault Fault) []runner.Reply {
	w.mu.Lock()
	aborted := w.aborted
	w.mu.Unlock()
	if w.isVoid(seq) {
		return one(runner.Failed{Kind: runner.Canceled, Message: "aborted"})
	}
	var row buffer
	held := true
	if o.Row != 0 {
		row, held = w.held(o.Row)
	}
	if o.Communicator != w.comm || o.Step != w.at+1 || !held {
		return stale("train")
	}
	if o.Micro == 0 {
		w.votes, w.part, w.bad = nil, Batch{}, false
	}
	if o.Row != 0 {
		v := runner.RowLoss{Row: o.Row, Numerator: 1 / float64(o.Step), Denominator: 1}
		if row.poisoned {
			v.Numerator, w.bad = math.NaN(), true
		}
		w.votes = append(w.votes, v)
		w.part.Add(row.part)
	}
	t := runner.Trained{Step: o.Step, Micro: o.Micro, Row: o.Row, BusyUS: 1}
	if !o.Last {
		w.markTrained(o.Row)
		return one(t)
	}
	if w.total = (Batch{}); w.Sum != nil {
		total, ok := w.Sum.wait(o.Communicator, w.world, w.part, aborted, w.Gone)
		if !ok {
			return one(runner.Failed{Kind: runner.Unavailable, Message: "the sum was broken off"})
		}
		w.total = total
	}
	w.markTrained(o.Row)
	return []runner.Reply{t, w.vote(o, fault)}
}

// vote is what a rank says of its share; the norm names the sum in its low bits.
func (w *Worker) vote(o runner.Train, fault Fault) runner.Voted {
	v := runner.Voted{At: o.At, Rows: w.votes, Weight: math.Float32bits(8),
		Norm: math.Float32bits(float32(o.Step)+0.5) ^ uint32(w.total[0]&0xfff), Finite: !w.bad}
	if fault == NaN && len(v.Rows) > 0 {
		v.Finite = false
		v.Rows[0].Numerator = math.NaN()
	}
	return v
}

func (w *Worker) commit(o runner.Commit, fault Fault) []runner.Reply {
	if o.Communicator != w.comm || o.Step != w.at && o.Step != w.at+1 {
		return stale("commit")
	}
	if o.Step == w.at+1 {
		w.at, w.chain = o.Step, o.Chain
		h := sha256.New()
		h.Write(w.state[:])
		h.Write(o.Chain[:])
		for _, x := range w.total {
			h.Write(binary.LittleEndian.AppendUint64(nil, x))
		}
		w.state = runner.Digest(h.Sum(nil))
		if fault == Drift {
			w.state[0]++
		}
	}
	w.drop(w.votes)
	w.votes = nil
	return one(runner.Committed{Step: o.Step})
}

func (w *Worker) evaluate(o runner.Evaluate) []runner.Reply {
	if o.What == "decode" && !w.plain {
		return one(runner.Failed{Kind: runner.Invalid, Message: "decode before plain"})
	}
	w.plain = w.plain || o.What == "plain"
	n := uint64(o.Count)
	r := runner.Evaluated{Step: o.Step, What: o.What, BusyUS: 10 * n, Lossless: true}
	if o.What == "loss" {
		r.Numerator, r.Denominator = float64(n)/float64(o.Step+1), float64(n)
		return one(r)
	}
	r.Tokens, r.Forwards = 8*n, 8*n
	if o.What == "decode" {
		r.Forwards = 2 * n
	}
	for range n {
		r.Prompts = append(r.Prompts, runner.PromptResult{Tokens: 8, Forwards: uint32(r.Forwards / n), Equal: true, BusyUS: 10})
	}
	return one(r)
}
