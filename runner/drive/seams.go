package drive

import (
	"context"
	"os"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/hang"
)

// Launcher starts lives. Launch is called from a goroutine of its own, once a
// life, with the device that it runs on; it returns when the worker is configured. After an error nothing of the
// life runs any more, and the error wraps a *Died. A cancelled ctx ends the
// launch; its cause names why.
type Launcher interface {
	Launch(ctx context.Context, life runner.Life, device string) (Process, error)
}

// Died says how a life that never came to be ended.
type Died struct {
	Failure runner.Failure
	Err     error
}

// Error gives the failure's message.
func (d *Died) Error() string { return d.Failure.Message }

// Unwrap gives the cause.
func (d *Died) Unwrap() error { return d.Err }

// Facts are what a worker said when it was configured.
type Facts struct {
	Pid        int
	SlotBytes  uint64 // targets
	ImageBytes uint64 // drafters
	Parameters runner.Digest
}

// Process is one life from Launch to its reaping.
type Process interface {
	Facts() Facts
	// WarmUp is called once, from a goroutine of its own. The certificate was
	// checked; progress may be called from that goroutine.
	WarmUp(ctx context.Context, progress func(phase string, done, total uint32)) (runner.Certificate, error)
	// Send is called from the loop and never waits.
	Send(seq uint64, o runner.Order, f *os.File) error
	// Receive is called from one reader goroutine; any error ends it.
	// The file is the caller's, and nil where none travels with the reply.
	Receive() (uint64, runner.Reply, *os.File, error)
	// Vitals looks at the process, and where deep at the CPU time of its group,
	// which costs a walk through all processes. From any goroutine.
	Vitals(deep bool) hang.Vitals
	// Kill ends the life; the first reason is kept. It is called once at most,
	// from a goroutine of its own: where the reason is a deadline, it first
	// gives the worker a moment to write its stacks.
	Kill(k core.Kill)
	// CloseLane ends a Receive that goes on although the process was reaped.
	CloseLane()
	// Done is closed once the process was reaped and nothing of it runs.
	Done() <-chan struct{}
	// Report says how it ended, after Done; nil for a drained worker's exit 0.
	Report() *runner.Failure
}

// Scheduler decides what may be decided by others: the order of samples and
// which free target makes a row. Every call has a deadline and is made from a
// goroutine of its own; a late, wrong or missing answer is replaced by the
// built-in's, counted and shown, and one that is ErrDeclined replaced alone.
type Scheduler interface {
	Name() string
	// Arrange gives the next count samples of an epoch, of which left were not
	// arranged yet; fewer only where fewer are left.
	Arrange(ctx context.Context, epoch uint32, count, left int) ([]runner.Sample, error)
	// Assign picks one of the free targets, of which there is at least one.
	Assign(ctx context.Context, row runner.RowPlan, free []runner.Worker) (runner.Worker, error)
}

// PoolScheduler is a Scheduler that chooses from what is left of an epoch.
type PoolScheduler interface {
	Scheduler
	// ArrangeOf is asked in place of Arrange. The pool holds what was not arranged
	// yet, in the built-in's order: all of it, or the first of it (Config.Pool).
	ArrangeOf(ctx context.Context, q core.Arrange, pool []runner.Sample) ([]runner.Sample, error)
}

// FailureScheduler is a Scheduler that says what is done about deaths.
type FailureScheduler interface {
	Scheduler
	// OnFailure is asked about a death that the restart policy bears. Nothing
	// waits for the answer; one that is late, wrong or missing leaves the death to
	// the policy. Life of the verdict is filled in.
	OnFailure(ctx context.Context, q core.Judge) (core.Verdict, error)
}

// PoolLimit bounds a pool, so that a question about many millions of samples
// stays one of some megabytes.
const PoolLimit = 1 << 18

// poolShare is how many times as many samples as are asked for a pool holds at
// least: from less there is little to choose.
const poolShare = 4

// poolOf is how many of the samples that are left a scheduler chooses count from.
func poolOf(pool, count, left int) int {
	if pool == 0 {
		pool = PoolLimit
	}
	return min(left, PoolLimit, max(pool, poolShare*count))
}

// Memory makes what crosses between workers and is held by the supervisor.
// MakeArena and MakeImage may take as long as touching the memory takes.
type Memory interface {
	MakeArena(id runner.Arena, of runner.Worker, slots uint32, slotBytes uint64) (Region, error)
	// TakeArena makes a region of the descriptor that came with `created`, after
	// judging it. f is its own from the call on, also after an error. It is
	// called from the loop and does not wait.
	TakeArena(o runner.CreateArena, f *os.File) (Region, error)
	MakeImage(step runner.Step, nbytes uint64) (Region, error)
}

// Region is an arena's or an image's memory. Files stay the region's own.
type Region interface {
	Kind() string
	Bytes() uint64
	Writable() *os.File // nil where it must not be written any more
	ReadOnly() *os.File
	Close() error
}

// Store keeps images on the disk. Its methods are called from goroutines of
// their own, one at a time.
type Store interface {
	// Open gives a checkpoint's image after checking its digest.
	Open(name string, want runner.Digest) (Region, error)
	// Publish makes a checkpoint of an image; when it returns without an error
	// the checkpoint is durable.
	Publish(p Publication) (name string, err error)
	Remove(name string) error
}

// Publication is a checkpoint to be.
type Publication struct {
	Region  Region
	Step    runner.Step
	Lineage runner.Lineage
	Digest  runner.Digest
	Chain   runner.Chain
	Best    bool
}

// Journal is the one writer of the run's journal. Append is called from the
// loop and does not wait for the disk; Sync returns at once and calls done from
// a goroutine when everything appended before it is durable.
type Journal interface {
	Append(r runner.Record) error
	Sync(done func(error))
}
