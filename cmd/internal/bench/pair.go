package bench

import (
	"context"
	"encoding/json"
	"os"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/arena"
)

const (
	pairArena  = 1
	pairSlots  = 3 // as a target's ring has
	burst      = 8 // copies for each time that is taken
	layersWide = 5 // captured layers of a row
)

// Row is the size of what is handed over.
type Row struct {
	Tokens int    `json:"tokens"`
	Width  int    `json:"width"` // elements a token: captured layers x hidden size
	DType  string `json:"dtype"`
}

// RowOf is a row of so many MiB of hidden states: on a GPU five layers of 4,096
// in bfloat16, so that 120 MiB are the reference's 3,072 tokens, on a CPU five
// of 1,024 in float32.
func RowOf(mebibytes int, cuda bool) Row {
	r := Row{Width: layersWide * 1024, DType: "float32"}
	bytes := r.Width * 4
	if cuda {
		r = Row{Width: layersWide * 4096, DType: "bfloat16"}
		bytes = r.Width * 2
	}
	r.Tokens = max(1, mebibytes<<20/bytes)
	return r
}

// pair is a producer and a consumer of one arena, and a process that copies
// plainly between the same devices.
type pair struct {
	name                       string
	producer, consumer, copier *partner
	size                       pairSize
	version                    int
	handle                     json.RawMessage
}

type pairSize struct {
	SlotBytes    uint64 `json:"slot_bytes"`
	HiddenBytes  uint64 `json:"hidden_bytes"`
	PayloadBytes uint64 `json:"payload_bytes"`
	Torch        string `json:"torch"`
	Python       string `json:"python"`
}

// Pairs measures a row from one process to another through the product's own
// arena, beside a plain copy between the same devices: both processes on the
// first GPU, and with two GPUs also from the first to the second. On a CPU the
// arena is a memfd.
func (r *Report) Pairs(ctx context.Context, p *Python, d Devices, row Row, rounds int) error {
	places := []struct {
		name string
		to   int
	}{{"one GPU", 0}}
	if !d.OnGPU() {
		places[0].name = "two processes"
	}
	if len(d.GPUs) > 1 {
		places = append(places, struct {
			name string
			to   int
		}{"GPU to GPU", 1})
	}
	for _, at := range places {
		x, err := openPair(ctx, p, d, at.name, at.to, row)
		if err != nil {
			return err
		}
		seconds, err := x.measure(rounds)
		x.close()
		if err != nil {
			return err
		}
		r.Torch, r.Versions["python"] = x.size.Torch, x.size.Python
		if err := r.pairs(at.name, x.size, seconds, at.to > 0); err != nil {
			return err
		}
	}
	return nil
}

// openPair starts the processes and hands the arena's descriptor over.
func openPair(ctx context.Context, p *Python, d Devices, name string, to int, row Row) (_ *pair, err error) {
	x := &pair{name: name}
	defer func() {
		if err != nil {
			x.close()
		}
	}()
	both := d.place(0)
	if to > 0 {
		both += "," + d.place(to)
	}
	for _, w := range []struct {
		into         **partner
		name, device string
	}{{&x.producer, "producer", d.place(0)}, {&x.consumer, "consumer", d.place(to)}, {&x.copier, "copier", both}} {
		if *w.into, err = startPartner(ctx, p, w.name, w.device, d.told(), d.threads()); err != nil {
			return nil, err
		}
	}
	for _, w := range x.partners() {
		if _, err := w.ask(&x.size, "row", nil, map[string]any{"tokens": row.Tokens, "width": row.Width, "dtype": row.DType}); err != nil {
			return nil, err
		}
	}
	return x, x.handOver(d.OnGPU())
}

// handOver makes the arena and lets the consumer map it for reading: on a GPU
// the producer allocates it, else it is made here, as a supervisor does both.
func (x *pair) handOver(cuda bool) error {
	shape := map[string]any{"kind": runner.ArenaMemfd, "slots": pairSlots, "slot_bytes": x.size.SlotBytes, "write": false}
	var fd *os.File
	if cuda {
		shape["kind"] = runner.ArenaCUDA
		made, err := x.producer.ask(nil, "create", nil, map[string]any{"slots": pairSlots, "slot_bytes": x.size.SlotBytes})
		if err != nil {
			return err
		}
		if made == nil {
			return runner.Errorf(runner.Internal, "make arena: want its descriptor, got none")
		}
		defer made.Close()
		fd = made
	} else {
		a, err := arena.New(pairArena, pairSlots, x.size.SlotBytes)
		if err != nil {
			return err
		}
		defer a.Close()
		shape["write"] = true
		if _, err := x.producer.ask(nil, "map", a.File(), shape); err != nil {
			return err
		}
		fd, shape["write"] = a.ReadOnlyFile(), false
	}
	_, err := x.consumer.ask(nil, "map", fd, shape)
	return err
}

// measure times everything once a round, one after the other; a first round is
// not counted. What was read at the end must be what was written.
func (x *pair) measure(rounds int) (map[string][]float64, error) {
	out := map[string][]float64{}
	for round := range rounds + 1 {
		for _, m := range pairMeasures {
			s, err := x.once(m.name)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				out[m.name] = append(out[m.name], s)
			}
		}
	}
	if _, err := x.once("write_row"); err != nil { // what stands in the slot was copied over
		return nil, err
	}
	if _, err := x.once("read_row"); err != nil {
		return nil, err
	}
	var same struct{ Equal bool }
	if _, err := x.consumer.ask(&same, "equal", nil, nil); err != nil {
		return nil, err
	}
	if !same.Equal {
		return nil, runner.Errorf(runner.Internal, "read row, %s: want what was written, got something else", x.name)
	}
	return out, nil
}

// once gives the seconds of one measure.
func (x *pair) once(name string) (float64, error) {
	var a struct {
		Seconds float64         `json:"seconds"`
		Handle  json.RawMessage `json:"handle"`
	}
	var err error
	times := map[string]any{"times": burst}
	switch name {
	case "plain":
		_, err = x.copier.ask(&a, "plain", nil, times)
	case "write_row":
		x.version += burst
		_, err = x.producer.ask(&a, "write", nil, map[string]any{"slot": x.version / burst % pairSlots, "version": x.version, "times": burst})
		x.handle = a.Handle
	case "copy_in":
		_, err = x.producer.ask(&a, "copy_in", nil, times)
	case "read_row":
		_, err = x.consumer.ask(&a, "read", nil, map[string]any{"handle": x.handle, "times": burst})
	default:
		_, err = x.consumer.ask(&a, "copy_out", nil, times)
	}
	if err == nil && a.Seconds <= 0 {
		err = runner.Errorf(runner.Internal, "measure %s, %s: want seconds above 0, got %g", name, x.name, a.Seconds)
	}
	return a.Seconds, err
}

func (x *pair) close() {
	for _, w := range x.partners() {
		if w != nil {
			w.stop()
		}
	}
}

func (x *pair) partners() []*partner { return []*partner{x.producer, x.consumer, x.copier} }
