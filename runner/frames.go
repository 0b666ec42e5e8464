package runner

// LaneVersion is the version that every frame carries.
const LaneVersion = 1

// Digest is a SHA-256.
type Digest [32]byte

// Tensor is one tensor inside a slot. Shape is in elements, Offset and NBytes
// in bytes from the start of the slot.
type Tensor struct {
	Name   string
	DType  string
	Shape  []uint64
	Offset uint64
	NBytes uint64
}

// Handle names a row's bytes in a slot: what a worker opens it with.
type Handle struct {
	Arena   Arena
	Slot    uint32
	Version Version
	CRC     uint32
	Tensors []Tensor
}

// The kinds of arenas: host memory that the supervisor makes, and memory of its
// producer's GPU that the producer makes and exports.
const (
	ArenaMemfd = "memfd"
	ArenaCUDA  = "cuda_vmm"
)

// Order is what the supervisor asks of a worker. The set is closed.
type Order interface{ order() string }

// Reply is what a worker answers. The set is closed.
type Reply interface{ reply() string }

// OrderType gives an order's frame name.
func OrderType(o Order) string { return o.order() }

// ReplyType gives a reply's frame name.
func ReplyType(r Reply) string { return r.reply() }

// At names the state that an order is about; an order that does not fit the
// worker's own is stale.
type At struct {
	Lineage      Lineage
	Communicator Communicator
	Step         Step
}

// The orders, as proto/lane.md gives them; each comment there holds.
type (
	// MapArena travels with the arena's descriptor.
	MapArena struct {
		Arena     Arena
		Kind      string
		Write     bool
		Slots     uint32
		SlotBytes uint64
	}
	// CreateArena has a target allocate its arena of kind ArenaCUDA, map it for
	// writing and export it.
	CreateArena struct {
		Arena     Arena
		Kind      string
		Slots     uint32
		SlotBytes uint64
	}
	// Produce makes a row in a slot.
	Produce struct {
		RowPlan
		Slot    Slot
		Version Version
	}
	// Pull copies a row out of a slot.
	Pull struct {
		RowPlan
		Handle Handle
	}
	// Join makes a communicator.
	Join struct {
		At
		World uint32
		Rank  Rank
	}
	// Train runs one micro-step; Row 0 is a weightless place.
	Train struct {
		At
		Micro uint32
		Row   Row
		Last  bool
	}
	// Commit applies the optimiser.
	Commit struct {
		At
		LR    float64
		Chain Chain
	}
	// Abort drops the open step.
	Abort struct{ At }
	// Image writes state; it travels with the memfd where Write.
	Image struct {
		At
		Write  bool
		NBytes uint64
	}
	// Load reads state; it travels with the image.
	Load struct {
		At
		NBytes uint64
	}
	// Evaluate decodes or scores; it travels with the image where NBytes > 0.
	Evaluate struct {
		Step      Step
		What      string // "decode", "plain", "loss"
		First     uint32
		Count     uint32
		NewTokens uint32
		NBytes    uint64
	}
	// Drain ends a worker.
	Drain struct{}
)

func (MapArena) order() string    { return "arena" }
func (CreateArena) order() string { return "create" }
func (Produce) order() string     { return "produce" }
func (Pull) order() string        { return "pull" }
func (Join) order() string        { return "join" }
func (Train) order() string       { return "train" }
func (Commit) order() string      { return "commit" }
func (Abort) order() string       { return "abort" }
func (Image) order() string       { return "image" }
func (Load) order() string        { return "load" }
func (Evaluate) order() string    { return "evaluate" }
func (Drain) order() string       { return "drain" }

// RowLoss is one row's own loss numerator and weight.
type RowLoss struct {
	Row         Row
	Numerator   float64
	Denominator float64
}

// PromptResult is one evaluated prompt.
type PromptResult struct {
	Tokens   uint32
	Forwards uint32
	Looping  bool
	Equal    bool
	BusyUS   uint64
}

// The replies.
type (
	// Mapped answers MapArena.
	Mapped struct{ Arena Arena }
	// Created answers CreateArena; it travels with the arena's descriptor.
	Created struct{ Arena Arena }
	// Produced answers Produce: the copy into the slot is complete.
	Produced struct {
		Row    Row
		Handle Handle
		BusyUS uint64
	}
	// Pulled answers Pull: the slot is free again.
	Pulled struct {
		Row    Row
		BusyUS uint64
	}
	// Joined answers Join.
	Joined struct{ Communicator Communicator }
	// Trained answers Train after the device's event: the turn is free.
	Trained struct {
		Step   Step
		Micro  uint32
		Row    Row
		BusyUS uint64
	}
	// Voted follows the last Trained of a step. Weight and Norm are f32 bits.
	Voted struct {
		At
		Rows   []RowLoss
		Weight uint32
		Norm   uint32
		Finite bool
	}
	// Committed answers Commit.
	Committed struct{ Step Step }
	// Aborted answers Abort; Clean: the device's context was proved usable.
	Aborted struct {
		Step  Step
		Clean bool
	}
	// Taken is the first answer to Image: the state is copied and may change.
	Taken struct {
		Step   Step
		BusyUS uint64
	}
	// Saved follows Taken; Image is zero where nothing was written.
	Saved struct {
		Step       Step
		Written    bool
		Image      Digest
		Parameters Digest
		BusyUS     uint64
	}
	// Loaded answers Load.
	Loaded struct {
		Step       Step
		Chain      Chain
		Parameters Digest
	}
	// Evaluated answers Evaluate.
	Evaluated struct {
		Step        Step
		What        string
		Tokens      uint64
		Forwards    uint64
		BusyUS      uint64
		Lossless    bool
		Numerator   float64
		Denominator float64
		Prompts     []PromptResult
	}
	// Drained answers Drain; the worker exits 0.
	Drained struct{}
	// Failed answers any order that could not be done.
	Failed struct {
		Kind      Kind
		Message   string
		Hint      string
		Traceback []string
	}
)

func (Mapped) reply() string    { return "mapped" }
func (Created) reply() string   { return "created" }
func (Produced) reply() string  { return "produced" }
func (Pulled) reply() string    { return "pulled" }
func (Joined) reply() string    { return "joined" }
func (Trained) reply() string   { return "trained" }
func (Voted) reply() string     { return "voted" }
func (Committed) reply() string { return "committed" }
func (Aborted) reply() string   { return "aborted" }
func (Taken) reply() string     { return "taken" }
func (Saved) reply() string     { return "saved" }
func (Loaded) reply() string    { return "loaded" }
func (Evaluated) reply() string { return "evaluated" }
func (Drained) reply() string   { return "drained" }
func (Failed) reply() string    { return "failed" }
