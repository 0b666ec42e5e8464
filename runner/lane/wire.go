package lane

import "github.com/dflash-runner/dflash-runner/runner"

// frame is a concrete struct of wire_orders.go or wire_replies.go. Its fields stand in the
// order of proto/lane.md: the encoder keeps it.
type frame interface{ start() head }

// head starts every frame.
type head struct {
	Type string `msgpack:"type"`
	V    uint32 `msgpack:"v"`
	Seq  uint64 `msgpack:"seq"`
}

func (h head) start() head { return h }

// place is runner.At on the wire.
type place struct {
	Lineage      uint32 `msgpack:"lineage"`
	Communicator uint32 `msgpack:"communicator"`
	Step         uint64 `msgpack:"step"`
}

func placeOf(a runner.At) place {
	return place{uint32(a.Lineage), uint32(a.Communicator), uint64(a.Step)}
}

func (p place) at() runner.At {
	return runner.At{
		Lineage:      runner.Lineage(p.Lineage),
		Communicator: runner.Communicator(p.Communicator),
		Step:         runner.Step(p.Step),
	}
}

// plan is runner.RowPlan on the wire.
type plan struct {
	Row    uint64  `msgpack:"row"`
	Epoch  uint32  `msgpack:"epoch"`
	Bucket uint32  `msgpack:"bucket"`
	Pieces []piece `msgpack:"pieces"`
}

type piece struct {
	//lint:ignore U1000 read by the encoder
	_msgpack struct{} `msgpack:",as_array"`
	Sample   uint32
	Draw     uint32
	Start    uint32
	Tokens   uint32
	Anchors  uint32
}

func planOf(r runner.RowPlan) plan {
	return plan{uint64(r.Row), r.Epoch, r.Bucket, each(r.Pieces, func(p runner.Piece) piece {
		return piece{Sample: uint32(p.Sample), Draw: p.Draw, Start: p.Start, Tokens: p.Tokens, Anchors: p.Anchors}
	})}
}

func (p plan) rowPlan() runner.RowPlan {
	return runner.RowPlan{
		Row: runner.Row(p.Row), Epoch: p.Epoch, Bucket: p.Bucket,
		Pieces: each(p.Pieces, func(p piece) runner.Piece {
			return runner.Piece{
				Sample: runner.Sample(p.Sample), Draw: p.Draw, Start: p.Start, Tokens: p.Tokens, Anchors: p.Anchors,
			}
		}),
	}
}

// handle is runner.Handle on the wire.
type handle struct {
	Arena   uint32   `msgpack:"arena"`
	Slot    uint32   `msgpack:"slot"`
	Version uint64   `msgpack:"version"`
	CRC     uint32   `msgpack:"crc"`
	Tensors []tensor `msgpack:"tensors"`
}

type tensor struct {
	//lint:ignore U1000 read by the encoder
	_msgpack struct{} `msgpack:",as_array"`
	Name     string
	DType    string
	Shape    []uint64
	Offset   uint64
	NBytes   uint64
}

func handleOf(h runner.Handle) handle {
	return handle{uint32(h.Arena), h.Slot, uint64(h.Version), h.CRC, each(h.Tensors, func(t runner.Tensor) tensor {
		return tensor{
			Name: t.Name, DType: t.DType, Shape: each(t.Shape, func(n uint64) uint64 { return n }),
			Offset: t.Offset, NBytes: t.NBytes,
		}
	})}
}

func (h handle) handle() runner.Handle {
	return runner.Handle{
		Arena: runner.Arena(h.Arena), Slot: h.Slot, Version: runner.Version(h.Version), CRC: h.CRC,
		Tensors: each(h.Tensors, func(t tensor) runner.Tensor {
			return runner.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Offset: t.Offset, NBytes: t.NBytes}
		}),
	}
}

// each maps f over in. The result is never nil: nil would be written as nil,
// which no frame holds.
func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}
