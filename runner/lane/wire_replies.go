package lane

import (
	"fmt"

	"github.com/dflash-runner/dflash-runner/runner"
)

// replyWire is a reply's struct on the wire.
type replyWire interface {
	frame
	reply() runner.Reply
}

type (
	mapped struct {
		head
		Arena uint32 `msgpack:"arena"`
	}
	created struct {
		head
		Arena uint32 `msgpack:"arena"`
	}
	produced struct {
		head
		Row    uint64 `msgpack:"row"`
		Handle handle `msgpack:"handle"`
		BusyUS uint64 `msgpack:"busy_us"`
	}
	pulled struct {
		head
		Row    uint64 `msgpack:"row"`
		BusyUS uint64 `msgpack:"busy_us"`
	}
	joined struct {
		head
		Communicator uint32 `msgpack:"communicator"`
	}
	trained struct {
		head
		Step   uint64 `msgpack:"step"`
		Micro  uint32 `msgpack:"micro"`
		Row    uint64 `msgpack:"row"`
		BusyUS uint64 `msgpack:"busy_us"`
	}
	voted struct {
		head
		place
		Rows   []rowLoss `msgpack:"rows"`
		Weight uint32    `msgpack:"weight"`
		Norm   uint32    `msgpack:"norm"`
		Finite bool      `msgpack:"finite"`
	}
	rowLoss struct {
		//lint:ignore U1000 read by the encoder
		_msgpack    struct{} `msgpack:",as_array"`
		Row         uint64
		Numerator   float64
		Denominator float64
	}
	committed struct {
		head
		Step uint64 `msgpack:"step"`
	}
	aborted struct {
		head
		Step  uint64 `msgpack:"step"`
		Clean bool   `msgpack:"clean"`
	}
	taken struct {
		head
		Step   uint64 `msgpack:"step"`
		BusyUS uint64 `msgpack:"busy_us"`
	}
	saved struct {
		head
		Step       uint64   `msgpack:"step"`
		Written    bool     `msgpack:"written"`
		Image      [32]byte `msgpack:"image"`
		Parameters [32]byte `msgpack:"parameters"`
		BusyUS     uint64   `msgpack:"busy_us"`
	}
	loaded struct {
		head
		Step       uint64   `msgpack:"step"`
		Chain      [32]byte `msgpack:"chain"`
		Parameters [32]byte `msgpack:"parameters"`
	}
	evaluated struct {
		head
		Step        uint64   `msgpack:"step"`
		What        string   `msgpack:"what"`
		Tokens      uint64   `msgpack:"tokens"`
		Forwards    uint64   `msgpack:"forwards"`
		BusyUS      uint64   `msgpack:"busy_us"`
		Lossless    bool     `msgpack:"lossless"`
		Numerator   float64  `msgpack:"numerator"`
		Denominator float64  `msgpack:"denominator"`
		Prompts     []prompt `msgpack:"prompts"`
	}
	prompt struct {
		//lint:ignore U1000 read by the encoder
		_msgpack struct{} `msgpack:",as_array"`
		Tokens   uint32
		Forwards uint32
		Looping  bool
		Equal    bool
		BusyUS   uint64
	}
	drained struct{ head }
	failed  struct {
		head
		Kind      string   `msgpack:"kind"`
		Message   string   `msgpack:"message"`
		Hint      string   `msgpack:"hint"`
		Traceback []string `msgpack:"traceback"`
	}
)

// newReplyFrame gives an empty struct for a type's name, or nil.
func newReplyFrame(typ string) replyWire {
	switch typ {
	case "mapped":
		return new(mapped)
	case "created":
		return new(created)
	case "produced":
		return new(produced)
	case "pulled":
		return new(pulled)
	case "joined":
		return new(joined)
	case "trained":
		return new(trained)
	case "voted":
		return new(voted)
	case "committed":
		return new(committed)
	case "aborted":
		return new(aborted)
	case "taken":
		return new(taken)
	case "saved":
		return new(saved)
	case "loaded":
		return new(loaded)
	case "evaluated":
		return new(evaluated)
	case "drained":
		return new(drained)
	case "failed":
		return new(failed)
	}
	return nil
}

// replyFrame gives r's struct on the wire; the set of replies is closed.
func replyFrame(h head, r runner.Reply) replyWire {
	switch r := r.(type) {
	case runner.Mapped:
		return &mapped{h, uint32(r.Arena)}
	case runner.Created:
		return &created{h, uint32(r.Arena)}
	case runner.Produced:
		return &produced{h, uint64(r.Row), handleOf(r.Handle), r.BusyUS}
	case runner.Pulled:
		return &pulled{h, uint64(r.Row), r.BusyUS}
	case runner.Joined:
		return &joined{h, uint32(r.Communicator)}
	case runner.Trained:
		return &trained{h, uint64(r.Step), r.Micro, uint64(r.Row), r.BusyUS}
	case runner.Voted:
		return &voted{h, placeOf(r.At), each(r.Rows, rowLossOf), r.Weight, r.Norm, r.Finite}
	case runner.Committed:
		return &committed{h, uint64(r.Step)}
	case runner.Aborted:
		return &aborted{h, uint64(r.Step), r.Clean}
	case runner.Taken:
		return &taken{h, uint64(r.Step), r.BusyUS}
	case runner.Saved:
		return &saved{h, uint64(r.Step), r.Written, r.Image, r.Parameters, r.BusyUS}
	case runner.Loaded:
		return &loaded{h, uint64(r.Step), r.Chain, r.Parameters}
	case runner.Evaluated:
		return &evaluated{
			h, uint64(r.Step), r.What, r.Tokens, r.Forwards, r.BusyUS, r.Lossless,
			r.Numerator, r.Denominator, each(r.Prompts, promptOf),
		}
	case runner.Drained:
		return &drained{h}
	case runner.Failed:
		return &failed{h, r.Kind.String(), r.Message, r.Hint, each(r.Traceback, func(s string) string { return s })}
	}
	panic(fmt.Sprintf("lane: reply %T is not of the closed set", r))
}

func rowLossOf(l runner.RowLoss) rowLoss {
	return rowLoss{Row: uint64(l.Row), Numerator: l.Numerator, Denominator: l.Denominator}
}

func promptOf(p runner.PromptResult) prompt {
	return prompt{Tokens: p.Tokens, Forwards: p.Forwards, Looping: p.Looping, Equal: p.Equal, BusyUS: p.BusyUS}
}

func (f *mapped) reply() runner.Reply { return runner.Mapped{Arena: runner.Arena(f.Arena)} }

func (f *created) reply() runner.Reply { return runner.Created{Arena: runner.Arena(f.Arena)} }

func (f *produced) reply() runner.Reply {
	return runner.Produced{Row: runner.Row(f.Row), Handle: f.Handle.handle(), BusyUS: f.BusyUS}
}

func (f *pulled) reply() runner.Reply {
	return runner.Pulled{Row: runner.Row(f.Row), BusyUS: f.BusyUS}
}

func (f *joined) reply() runner.Reply {
	return runner.Joined{Communicator: runner.Communicator(f.Communicator)}
}

func (f *trained) reply() runner.Reply {
	return runner.Trained{Step: runner.Step(f.Step), Micro: f.Micro, Row: runner.Row(f.Row), BusyUS: f.BusyUS}
}

func (f *voted) reply() runner.Reply {
	rows := each(f.Rows, func(l rowLoss) runner.RowLoss {
		return runner.RowLoss{Row: runner.Row(l.Row), Numerator: l.Numerator, Denominator: l.Denominator}
	})
	return runner.Voted{At: f.at(), Rows: rows, Weight: f.Weight, Norm: f.Norm, Finite: f.Finite}
}

func (f *committed) reply() runner.Reply { return runner.Committed{Step: runner.Step(f.Step)} }

func (f *aborted) reply() runner.Reply {
	return runner.Aborted{Step: runner.Step(f.Step), Clean: f.Clean}
}

func (f *taken) reply() runner.Reply {
	return runner.Taken{Step: runner.Step(f.Step), BusyUS: f.BusyUS}
}

func (f *saved) reply() runner.Reply {
	return runner.Saved{
		Step: runner.Step(f.Step), Written: f.Written, Image: f.Image, Parameters: f.Parameters, BusyUS: f.BusyUS,
	}
}

func (f *loaded) reply() runner.Reply {
	return runner.Loaded{Step: runner.Step(f.Step), Chain: f.Chain, Parameters: f.Parameters}
}

func (f *evaluated) reply() runner.Reply {
	return runner.Evaluated{
		Step: runner.Step(f.Step), What: f.What, Tokens: f.Tokens, Forwards: f.Forwards, BusyUS: f.BusyUS,
		Lossless: f.Lossless, Numerator: f.Numerator, Denominator: f.Denominator,
		Prompts: each(f.Prompts, func(p prompt) runner.PromptResult {
			return runner.PromptResult{
				Tokens: p.Tokens, Forwards: p.Forwards, Looping: p.Looping, Equal: p.Equal, BusyUS: p.BusyUS,
			}
		}),
	}
}

func (f *drained) reply() runner.Reply { return runner.Drained{} }

func (f *failed) reply() runner.Reply {
	kind, ok := runner.ParseKind(f.Kind)
	if !ok {
		kind = unknownKind // refused by checkReply
	}
	return runner.Failed{Kind: kind, Message: f.Message, Hint: f.Hint, Traceback: f.Traceback}
}
