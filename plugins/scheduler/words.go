package scheduler

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Info is who a plugin is.
type Info struct {
	Name         string // as in the host's catalog: a-z, 0-9 and '-', at most 64
	Version      string // for people
	APIVersions  []uint32
	Capabilities []Capability
}

// Capability is something that a plugin may be asked. The names are those of
// the interfaces' methods.
type Capability string

// The capabilities.
const (
	Place     Capability = "place"
	Arrange   Capability = "arrange"
	Assign    Capability = "assign"
	OnFailure Capability = "on_failure"
	Observe   Capability = "observe"
)

// ArrangeRequest asks for the next part of an epoch's order.
type ArrangeRequest struct {
	Epoch   uint32 // from 1
	Count   int    // how many to give
	Left    int    // of the epoch that were not arranged yet, the pool included
	Total   int    // of the epoch
	Pool    []Candidate
	Sources []Source
}

// Candidate is a sample that may come next. One that is drawn several times in
// an epoch stands in the pool as often.
type Candidate struct {
	Sample     runner.Sample
	Tokens     uint32
	Supervised uint32 // tokens with a label
	Anchors    uint32 // places a block may start from
	Source     int    // index into Sources
}

// Source is where samples come from.
type Source struct {
	Name string
	Loss *float64 // recent mean, see the package comment; nil: not trained on yet
}

// AssignRequest asks which free target makes a row.
type AssignRequest struct {
	Row    runner.Row
	Bucket uint32 // tokens that it is padded to
	Tokens uint32 // of its samples
	Free   []runner.Worker
}

// PlaceRequest asks where workers run.
type PlaceRequest struct {
	Devices  []Device
	Needs    []Need
	Colocate bool // two workers may share a device
}

// Device is a GPU, or the CPU.
type Device struct {
	ID          string // a UUID, or "cpu"
	Name        string
	MemoryBytes uint64
	FreeBytes   uint64
	Health      string // healthy, degraded, critical or unknown
	Node, NUMA  uint32
	Links       []Link
}

// Link is how well a device reaches another.
type Link struct {
	ID     string
	GBPerS float64 // 0: not measured
	Peer   bool    // reads the other's memory directly
}

// Need is what a worker takes.
type Need struct {
	Worker      runner.Worker
	MemoryBytes uint64
	RowMS       *float64 // measured time of a row; nil: not measured yet
}

// Placement puts a worker on a device.
type Placement struct {
	Worker runner.Worker
	Device string
}

// FailureRequest tells of a worker's death.
type FailureRequest struct {
	Worker         runner.Worker
	Device         string
	Cause          runner.Cause
	Message        string
	Deaths, Budget uint32 // that count, this one included; after which the run gives up
	Devices        []Device
}

// Decision is what is done about a death.
type Decision string

// The decisions.
const (
	Restart Decision = "restart" // on the same device
	Replace Decision = "replace" // on another
	Stop    Decision = "stop"    // end the run after a checkpoint
)

// Verdict is a decision with its device, for Replace, and its reason.
type Verdict struct {
	Decision Decision
	Device   string
	Reason   string
}

// Event is what happened.
type Event struct {
	Number  uint64 // rises; a gap is what was lost
	At      time.Time
	Level   runner.Level
	Name    string
	Message string
	Worker  *runner.Worker // nil: of the run
	Step    runner.Step
	Row     runner.Row
}

// First gives the first of the pool, as the built-in would.
func First(q ArrangeRequest) []runner.Sample {
	first := q.Pool[:min(q.Count, len(q.Pool))]
	out := make([]runner.Sample, 0, len(first))
	for _, c := range first {
		out = append(out, c.Sample)
	}
	return out
}
