// Package runner holds the words that every other package of dflash-runner
// speaks: workers and their identity, rows, steps, slots, errors and events.
// It imports the standard library alone and decides nothing.
package runner

import (
	"fmt"
	"strconv"
	"strings"
)

// Role is what a worker does. The set is closed.
type Role string

// The two roles.
const (
	Target  Role = "target"  // frozen forward, captures hidden states
	Drafter Role = "drafter" // trains
)

// Valid reports whether r is one of the two roles.
func (r Role) Valid() bool { return r == Target || r == Drafter }

// Rank is a worker's index within its role, from 0.
type Rank int

// Generation counts the starts of one worker, from 1. It rises at every
// restart and fences everything older.
type Generation uint32

// Worker names a worker: "target/0", "drafter/1". It outlives generations.
type Worker struct {
	Role Role
	Rank Rank
}

// String gives the name used in configuration, logs, status and file names.
func (w Worker) String() string { return string(w.Role) + "/" + strconv.Itoa(int(w.Rank)) }

// FileName gives the name with '/' replaced, for log and certificate files.
func (w Worker) FileName() string { return string(w.Role) + "-" + strconv.Itoa(int(w.Rank)) }

// ParseWorker reads "role/rank".
func ParseWorker(s string) (Worker, error) {
	role, rank, ok := strings.Cut(s, "/")
	n, err := strconv.Atoi(rank)
	if w := (Worker{Role(role), Rank(n)}); ok && err == nil && n >= 0 && w.Role.Valid() && w.String() == s {
		return w, nil
	}
	return Worker{}, Errorf(Invalid, "parse worker %q: want target/N or drafter/N", s)
}

// MarshalText writes the worker's name.
func (w Worker) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText reads the worker's name.
func (w *Worker) UnmarshalText(b []byte) (err error) {
	*w, err = ParseWorker(string(b))
	return err
}

// Life is one start of a worker: the unit that lives and dies.
type Life struct {
	Worker     Worker
	Generation Generation
}

// String gives "target/0.3" for the third start of target/0.
func (l Life) String() string { return fmt.Sprintf("%s.%d", l.Worker, l.Generation) }

// Row numbers packed rows, from 1; numbers never repeat in a run. 0 means no
// row: a weightless place of a step.
type Row uint64

// Step numbers optimiser updates, from 1. Step 0 is the state before training.
type Step uint64

// Lineage counts the restores of a run, from 1.
type Lineage uint32

// Communicator numbers the groups of drafters that sum gradients, from 1.
type Communicator uint32

// Version counts the uses of a slot, from 1. It rises at every reuse.
type Version uint64

// Arena numbers a piece of slotted memory, from 1; numbers never repeat in
// one supervisor's life, so a handle of a dead worker's arena finds nothing.
type Arena uint32

// Slot names one slot of one arena.
type Slot struct {
	Arena Arena
	Index uint32
}

// String gives "arena 2 slot 1".
func (s Slot) String() string { return fmt.Sprintf("arena %d slot %d", s.Arena, s.Index) }

// Sample indexes the data index, from 0.
type Sample uint32

// Piece is one sample's place in a row.
type Piece struct {
	Sample  Sample
	Draw    uint32 // which draw of anchors of this sample in this epoch
	Start   uint32 // first token's place in the row
	Tokens  uint32 // length; a sample is never cut
	Anchors uint32 // how many of the row's N anchor places are this piece's
}

// RowPlan is everything that decides what a row holds.
type RowPlan struct {
	Row    Row
	Epoch  uint32
	Bucket uint32 // length in tokens
	Pieces []Piece
}

// StepPlan fixes which rows each rank trains in step N, and the learning rate.
// Rows[rank][micro] is 0 at a weightless place.
type StepPlan struct {
	Step  Step
	Epoch uint32
	LR    float64
	Rows  [][]Row
}

// Chain is the running digest of a run's step plans.
type Chain [32]byte
