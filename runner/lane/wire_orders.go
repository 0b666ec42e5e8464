package lane

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
)

// orderWire is an order's struct on the wire.
type orderWire interface {
	frame
	order() runner.Order
}

type (
	mapArena struct {
		head
		Arena     uint32 `msgpack:"arena"`
		Kind      string `msgpack:"kind"`
		Write     bool   `msgpack:"write"`
		Slots     uint32 `msgpack:"slots"`
		SlotBytes uint64 `msgpack:"slot_bytes"`
	}
	createArena struct {
		head
		Arena     uint32 `msgpack:"arena"`
		Kind      string `msgpack:"kind"`
		Slots     uint32 `msgpack:"slots"`
		SlotBytes uint64 `msgpack:"slot_bytes"`
	}
	produce struct {
		head
		plan
		Arena   uint32 `msgpack:"arena"`
		Slot    uint32 `msgpack:"slot"`
		Version uint64 `msgpack:"version"`
	}
	pull struct {
		head
		plan
		Handle handle `msgpack:"handle"`
	}
	join struct {
		head
		place
		World uint32 `msgpack:"world"`
		Rank  uint32 `msgpack:"rank"`
	}
	train struct {
		head
		place
		Micro uint32 `msgpack:"micro"`
		Row   uint64 `msgpack:"row"`
		Last  bool   `msgpack:"last"`
	}
	commit struct {
		head
		place
		LR    float64  `msgpack:"lr"`
		Chain [32]byte `msgpack:"chain"`
	}
	abort struct {
		head
		place
	}
	image struct {
		head
		place
		Write  bool   `msgpack:"write"`
		NBytes uint64 `msgpack:"nbytes"`
	}
	load struct {
		head
		place
		NBytes uint64 `msgpack:"nbytes"`
	}
	evaluate struct {
		head
		Step      uint64 `msgpack:"step"`
		What      string `msgpack:"what"`
		First     uint32 `msgpack:"first"`
		Count     uint32 `msgpack:"count"`
		NewTokens uint32 `msgpack:"new_tokens"`
		NBytes    uint64 `msgpack:"nbytes"`
	}
	drain struct{ head }
)

// newOrderFrame gives an empty struct for a type's name, or nil.
func newOrderFrame(typ string) orderWire {
	switch typ {
	case "arena":
		return new(mapArena)
	case "create":
		return new(createArena)
	case "produce":
		return new(produce)
	case "pull":
		return new(pull)
	case "join":
		return new(join)
	case "train":
		return new(train)
	case "commit":
		return new(commit)
	case "abort":
		return new(abort)
	case "image":
		return new(image)
	case "load":
		return new(load)
	case "evaluate":
		return new(evaluate)
	case "drain":
		return new(drain)
	}
	return nil
}

// orderFrame gives o's struct on the wire; the set of orders is closed.
func orderFrame(h head, o runner.Order) orderWire {
	switch o := o.(type) {
	case runner.MapArena:
		return &mapArena{h, uint32(o.Arena), o.Kind, o.Write, o.Slots, o.SlotBytes}
	case runner.CreateArena:
		return &createArena{h, uint32(o.Arena), o.Kind, o.Slots, o.SlotBytes}
	case runner.Produce:
		return &produce{h, planOf(o.RowPlan), uint32(o.Slot.Arena), o.Slot.Index, uint64(o.Version)}
	case runner.Pull:
		return &pull{h, planOf(o.RowPlan), handleOf(o.Handle)}
	case runner.Join:
		return &join{h, placeOf(o.At), o.World, uint32(o.Rank)}
	case runner.Train:
		return &train{h, placeOf(o.At), o.Micro, uint64(o.Row), o.Last}
	case runner.Commit:
		return &commit{h, placeOf(o.At), o.LR, o.Chain}
	case runner.Abort:
		return &abort{h, placeOf(o.At)}
	case runner.Image:
		return &image{h, placeOf(o.At), o.Write, o.NBytes}
	case runner.Load:
		return &load{h, placeOf(o.At), o.NBytes}
	case runner.Evaluate:
		return &evaluate{h, uint64(o.Step), o.What, o.First, o.Count, o.NewTokens, o.NBytes}
	case runner.Drain:
		return &drain{h}
	}
	panic(fmt.Sprintf("lane: order %T is not of the closed set", o))
}

func (f *mapArena) order() runner.Order {
	return runner.MapArena{Arena: runner.Arena(f.Arena), Kind: f.Kind, Write: f.Write, Slots: f.Slots, SlotBytes: f.SlotBytes}
}

func (f *createArena) order() runner.Order {
	return runner.CreateArena{Arena: runner.Arena(f.Arena), Kind: f.Kind, Slots: f.Slots, SlotBytes: f.SlotBytes}
}

func (f *produce) order() runner.Order {
	slot := runner.Slot{Arena: runner.Arena(f.Arena), Index: f.Slot}
	return runner.Produce{RowPlan: f.rowPlan(), Slot: slot, Version: runner.Version(f.Version)}
}

func (f *pull) order() runner.Order {
	return runner.Pull{RowPlan: f.rowPlan(), Handle: f.Handle.handle()}
}

func (f *join) order() runner.Order {
	return runner.Join{At: f.at(), World: f.World, Rank: runner.Rank(f.Rank)}
}

func (f *train) order() runner.Order {
	return runner.Train{At: f.at(), Micro: f.Micro, Row: runner.Row(f.Row), Last: f.Last}
}

func (f *commit) order() runner.Order {
	return runner.Commit{At: f.at(), LR: f.LR, Chain: f.Chain}
}

func (f *abort) order() runner.Order { return runner.Abort{At: f.at()} }

func (f *image) order() runner.Order {
	return runner.Image{At: f.at(), Write: f.Write, NBytes: f.NBytes}
}

func (f *load) order() runner.Order { return runner.Load{At: f.at(), NBytes: f.NBytes} }

func (f *evaluate) order() runner.Order {
	return runner.Evaluate{
		Step: runner.Step(f.Step), What: f.What, First: f.First, Count: f.Count, NewTokens: f.NewTokens, NBytes: f.NBytes,
	}
}

func (f *drain) order() runner.Order { return runner.Drain{} }
