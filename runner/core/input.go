package core

import (
	"github.com/dflash-runner/dflash-runner/runner"
)

// Input is what the core is told. The set is closed. drive feeds inputs one at
// a time, in the order in which they happened, each with the time of its
// arrival; the core reads no clock.
type Input interface{ input() }

// Inputs about lives. Every Launch is answered by exactly one Exited, at the
// very end; whatever comes from a life after its Exited is ignored.
type (
	// Begin is the first input, once.
	Begin struct{}
	// Launched says that a life shook hands and was configured. The fields are
	// those of its Configured; a target has no ImageBytes, a drafter no SlotBytes.
	Launched struct {
		Life       runner.Life
		SlotBytes  uint64
		ImageBytes uint64
		Parameters runner.Digest // digest of a drafter's parameters at step 0
	}
	// Certified says that a life's certificate was checked and is valid.
	Certified struct {
		Life        runner.Life
		Certificate runner.Certificate
	}
	// Unfit says that a life is of no use although it may still run: its
	// configuration or certificate was refused, it broke the protocol, or its
	// sign of life stopped. The core kills it.
	Unfit struct {
		Life    runner.Life
		Cause   runner.Cause
		Message string
		Hint    string
	}
	// DeviceUnfit says that no life is to be started on a device any more. Lives
	// that run there go on. Again for one device: the first reason stays.
	DeviceUnfit struct{ Device, Reason string }
	// LaneClosed says that a life's lane reached its end. Its process may
	// still run, and its device still write.
	LaneClosed struct{ Life runner.Life }
	// Exited says that a life was reaped, or never came to be: nothing of it
	// runs any more. Failure is nil where it was drained and ended with 0.
	Exited struct {
		Life    runner.Life
		Failure *runner.Failure
	}
	// Replied is a reply on a life's lane to the order sent with Seq.
	Replied struct {
		Life  runner.Life
		Seq   uint64
		Reply runner.Reply
	}
)

// Inputs that answer actions.
type (
	// ArenaMade answers MakeArena.
	ArenaMade struct {
		Arena runner.Arena
		Kind  string
	}
	// ArenaFailed answers MakeArena: there is no such memory.
	ArenaFailed struct {
		Arena runner.Arena
		Err   error
	}
	// ImageMade answers MakeImage and OpenImage: its memory or file is there.
	ImageMade struct{ Image ImageID }
	// ImageFailed answers MakeImage and OpenImage: no memory, or the
	// checkpoint's digest was wrong.
	ImageFailed struct {
		Image ImageID
		Err   error
	}
	// Durable answers Sync: all records up to number UpTo are on the disk.
	Durable struct{ UpTo uint64 }
	// JournalFailed says that appending or syncing failed. No further record
	// can be trusted to be written: the run ends.
	JournalFailed struct{ Err error }
	// Arranged answers Arrange. drive has checked it; samples that the planner
	// refuses all the same end the run.
	Arranged struct {
		Epoch   uint32
		Samples []runner.Sample
	}
	// Assigned answers Assign: the target that makes the row.
	Assigned struct {
		Row    runner.Row
		Target runner.Worker
	}
	// Verdict answers Judge. drive has checked it against the question; it may be
	// late by now, come twice, or never.
	Verdict struct {
		Life     runner.Life
		Decision string // VerdictRestart, VerdictReplace or VerdictStop
		Device   string // of a replacement
		Reason   string // for people
	}
	// Published answers Publish. Err is nil once the rename is durable.
	Published struct {
		Image ImageID
		Name  string
		Err   error
	}
)

// Inputs from outside.
type (
	// Tick says that the time named by the last Wake has come. More of them do
	// no harm.
	Tick struct{}
	// Suspended says that the supervisor itself did not run for a while: what
	// workers owe is due as if it were asked for now.
	Suspended struct{}
	// CheckpointRequested asks for a checkpoint of the step decided next.
	CheckpointRequested struct{}
	// StopRequested is a signal or `down`. Quick: end now, save nothing more.
	StopRequested struct {
		Quick  bool
		Reason string
	}
)

func (Begin) input()               {}
func (Launched) input()            {}
func (Certified) input()           {}
func (Unfit) input()               {}
func (DeviceUnfit) input()         {}
func (LaneClosed) input()          {}
func (Exited) input()              {}
func (Replied) input()             {}
func (ArenaMade) input()           {}
func (ArenaFailed) input()         {}
func (ImageMade) input()           {}
func (ImageFailed) input()         {}
func (Durable) input()             {}
func (JournalFailed) input()       {}
func (Arranged) input()            {}
func (Assigned) input()            {}
func (Verdict) input()             {}
func (Published) input()           {}
func (Tick) input()                {}
func (Suspended) input()           {}
func (CheckpointRequested) input() {}
func (StopRequested) input()       {}
