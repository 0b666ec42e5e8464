package core

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Action is what the core wants done. The set is closed. drive carries actions
// out in the order given; none blocks the loop: what takes time answers with
// an input later.
type Action interface{ action() }

// ImageID numbers images, from 1, and never repeats in one supervisor's life.
type ImageID uint32

// Actions on lives.
type (
	// Launch starts a life: process, handshake, Describe, Configure. Answered
	// by Launched, and at the end of the life by Exited.
	Launch struct {
		Life   runner.Life
		Device string
	}
	// WarmUp calls WarmUp; the life holds the gate. Answered by Certified or Unfit.
	WarmUp struct{ Life runner.Life }
	// Send sends an order on a life's lane, with the frame's seq. A descriptor
	// goes along with these orders: with MapArena the arena's, writable where
	// Write; with Image where Write, Load, and Evaluate where NBytes > 0, the
	// image's (Image here), writable for the first alone. A failed send is
	// reported as LaneClosed.
	Send struct {
		Life  runner.Life
		Seq   uint64
		Order runner.Order
		Image ImageID // 0: none
	}
	// Kill ends a life by the kill ladder. It is sent at most once a life, ends
	// in Exited, and the failure there names this cause and message unless the
	// process had died before by itself.
	Kill struct {
		Life    runner.Life
		Cause   runner.Cause
		Message string
		Hint    string
		// Traceback is what the worker said of its error, where it said it.
		Traceback []string
	}
)

// Actions on memory and the disk.
type (
	// MakeArena allocates an arena for a target's slots, where targets do not do
	// so themselves. Answered by ArenaMade or ArenaFailed. Arenas of any kind
	// stay until the supervisor ends.
	MakeArena struct {
		Arena     runner.Arena
		Worker    runner.Worker
		Slots     uint32
		SlotBytes uint64
	}
	// HoldArena keeps the descriptor that came with the Created reply whose
	// handling gives this action. A descriptor without it is closed.
	HoldArena struct{ Arena runner.Arena }
	// MakeImage makes an empty memfd. Answered by ImageMade or ImageFailed.
	MakeImage struct {
		Image ImageID
		Step  runner.Step
		Bytes uint64
	}
	// OpenImage opens a checkpoint's image and checks its digest. Answered by
	// ImageMade or ImageFailed.
	OpenImage struct {
		Image  ImageID
		Step   runner.Step
		Name   string
		Digest runner.Digest
	}
	// DropImage closes an image's descriptor.
	DropImage struct{ Image ImageID }
	// Publish writes an image to the disk as a checkpoint: files synced,
	// renamed, directory synced. The journal is durable through its commit.
	// Best: it also takes the place of the best one. Answered by Published.
	// An image published before (as a checkpoint, then as the best) may be
	// published again; drive need not copy it twice.
	Publish struct {
		Image  ImageID
		Step   runner.Step
		Digest runner.Digest
		Chain  runner.Chain
		Best   bool
	}
	// Unpublish removes a checkpoint that is neither among the last ones kept
	// nor the best.
	Unpublish struct{ Name string }
	// Append writes a record without waiting for the disk. Number rises by one.
	Append struct {
		Number uint64
		Record runner.Record
	}
	// Sync makes everything appended so far durable. Answered by Durable; one
	// answer may stand for several.
	Sync struct{}
)

// Actions on the scheduler, the clock and people.
type (
	// Arrange asks for the next samples of an epoch, Count of them or all that
	// are left. Answered by Arranged; a late or bad answer is drive's to
	// replace by the built-in order.
	Arrange struct {
		Epoch uint32
		Count int
		Left  int // draws of the epoch not arranged yet
		// Losses are the recent losses of those sources that were trained on.
		Losses []SourceLoss
	}
	// Assign asks which of the free targets makes a row. Answered by Assigned.
	Assign struct {
		Row  runner.RowPlan
		Free []runner.Worker
	}
	// Judge asks what is done about a death, which the policy meanwhile answers
	// with a restart. Answered by Verdict, or not at all.
	Judge struct {
		Life    runner.Life // that died
		Device  string
		Cause   runner.Cause
		Message string
		Deaths  int      // of the worker that count, this one included
		Budget  int      // that are borne
		Spares  []string // devices without a worker that it may be started on
	}
	// Wake asks for a Tick at a time. It replaces the one before.
	Wake struct{ At time.Time }
	// Emit tells people.
	Emit struct{ Event runner.Event }
	// Finish is the last action: every life was reaped, the journal is durable.
	Finish struct {
		Code   int
		Reason string
	}
)

func (Launch) action()    {}
func (WarmUp) action()    {}
func (Send) action()      {}
func (Kill) action()      {}
func (MakeArena) action() {}
func (HoldArena) action() {}
func (MakeImage) action() {}
func (OpenImage) action() {}
func (DropImage) action() {}
func (Publish) action()   {}
func (Unpublish) action() {}
func (Append) action()    {}
func (Sync) action()      {}
func (Arrange) action()   {}
func (Assign) action()    {}
func (Judge) action()     {}
func (Wake) action()      {}
func (Emit) action()      {}
func (Finish) action()    {}
