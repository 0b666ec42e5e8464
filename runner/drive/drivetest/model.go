package drivetest

import (
	"crypto/sha256"
	"errors"
	"os"
	"sync"

	"github.com/dflash-runner/dflash-runner/runner"
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
	Spike   Fault = "spike"   // a vote whose loss is a hundred times what it was
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
	// Saving is called when the copy for an image is taken, before it is written, beside; nil: nothing is.
	Saving func(o runner.Image)
	// Poison is a sample whose loss is not a number, plus one; 0: there is none.
	Poison runner.Sample
	Died   func() // called when it dies while its lane is waited for

	mu      sync.Mutex // guards below
	arenas  map[runner.Arena]mapped
	buffers [2]buffer
	void    uint64         // train and join before this seq are given up
	aborted chan struct{}  // closed by the next abort
	beside  sync.WaitGroup // images being written

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
	defer w.beside.Wait()
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

// fail is a fault instead of what was asked for: an answer, or an end.
func (w *Worker) fail(fault Fault) (runner.Reply, error) {
	switch fault {
	case Die:
		return nil, ErrDied
	case Hang:
		<-w.Gone
		return nil, ErrDied
	case Refuse:
		return runner.Failed{Kind: runner.Invalid, Message: "refused on purpose", Hint: "none"}, nil
	case Broken:
		return runner.Failed{Kind: runner.Fatal, Message: "broken on purpose", Traceback: []string{"File model, line 1"}}, nil
	case Wrong:
		return runner.Drained{}, nil
	}
	return nil, nil
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
	r, err := w.fail(fault)
	if !keeps(a.order) || err != nil || r != nil {
		defer closeFile(a)
	}
	if err != nil {
		return err
	}
	if r != nil {
		return l.SendReply(a.seq, r, nil)
	}
	if o, ok := a.order.(runner.CreateArena); ok {
		return w.create(l, a.seq, o, fault)
	}
	if o, ok := a.order.(runner.Image); ok {
		return w.image(l, a, o, fault)
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

// keeps reports whether an order's descriptor is held beyond its first answer.
func keeps(o runner.Order) bool {
	switch o.(type) {
	case runner.MapArena, runner.Image:
		return true
	}
	return false
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
		w.abort(a.seq)
		return one(runner.Aborted{Step: o.Step, Clean: true})
	case runner.Load:
		return w.load(o, a.file)
	case runner.Evaluate:
		return w.evaluate(o)
	}
	return one(runner.Failed{Kind: runner.Internal, Message: "unknown order"})
}

// abort gives up what was ordered before.
func (w *Worker) abort(before uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.void = before
	close(w.aborted)
	w.aborted = make(chan struct{})
}

func (w *Worker) isVoid(seq uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return seq < w.void
}
