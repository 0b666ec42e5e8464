package core

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// Config is everything that the core's decisions depend on besides its inputs.
type Config struct {
	Workers      []Worker       // ranks of each role count from 0 without a gap
	Devices      map[string]int // turns of each device that a worker or a spare names
	GateWidth    int
	Slots        uint32  // of each target's arena
	ArenaKind    string  // runner.ArenaCUDA: each target creates its own; else the supervisor makes them
	Planner      Planner // freshly made; the core owns it from New on
	Steps        runner.Step
	Epochs       uint32 // 0: no limit but Steps; Steps 0: no limit but Epochs
	HorizonSteps int    // how many steps' samples are arranged at a time
	ImageEvery   runner.Step
	Checkpoint   runner.Step // a checkpoint every so many steps; 0: at the end alone
	KeepLast     int         // checkpoints kept besides the best
	ForgetBest   bool        // no checkpoint is kept for its held-out loss
	Evaluation   Evaluation
	Restart      Restart
	Deadlines    Deadlines
	NonFinite    int // so many non-finite votes running end the run
	Spikes       Spikes
	AskScheduler bool                     // ask which free target makes a row, where several are free
	AskVerdicts  bool                     // ask what is done about a death
	ArrangeAhead int                      // steps' rows below which the next samples are asked for; 0: none, they are asked for when they are needed
	Spares       map[runner.Role][]string // devices that a life of the role may be started on in place of its own
	SourceOf     func(runner.Sample) int  // number of a sample's source, -1: none; nil: losses by source are not kept
	Manifest     runner.Digest
	Excluded     []rows.Exclusion
	Resume       *Resume // nil in a new run

	without protections // all in force outside the search's tests
}

// Worker is one worker and where it runs.
type Worker struct {
	Worker runner.Worker
	Device string
}

// Evaluation says when and what is evaluated, in a target worker.
type Evaluation struct {
	Every          runner.Step // 0: never between start and end
	AtStart        bool
	AtEnd          bool
	Heldout        uint32 // samples for the held-out loss; 0: none
	HeldoutChunk   uint32 // samples an order
	Prompts        uint32 // prompts to decode; 0: none
	PromptChunk    uint32
	PromptsAtStart uint32 // of Prompts, decoded with the untrained drafter; 0: all
	NewTokens      uint32
	DecodeEvery    runner.Step // as Every, for decoding; 0: at start and end alone
}

// Restart bounds how often a worker is started again.
type Restart struct {
	Budget int           // deaths that are borne
	Decay  time.Duration // one death is forgiven for so much time without one; 0: never
	Base   time.Duration // wait before the first restart; doubles with each
	Cap    time.Duration // longest wait
	Jitter float64       // share of a wait, 0 to 1, by which a draw may shorten it
	Seed   uint64        // of the draws
	Never  bool          // the first death ends the run
}

// Deadlines of the phases of a life; 0 means none.
type Deadlines struct {
	Launch   time.Duration // until Launched
	WarmUp   time.Duration // until Certified, from the gate on
	Order    time.Duration // for any order but the ones below
	Step     time.Duration // for the micro-step that reduces
	Abort    time.Duration
	Image    time.Duration // image and load
	Evaluate time.Duration // one chunk
	Drain    time.Duration // from the drain order to Exited
	Stop     time.Duration // from a graceful stop to Finish; then it turns quick
}

// Planner gives step plans: *rows.Planner, or a small one in tests. The same
// calls must always give the same plans.
type Planner interface {
	Wanted() (epoch uint32, left int)
	Horizon(steps int) int
	Feed(epoch uint32, samples []runner.Sample) error
	Next() (s rows.Step, ok bool)
	// Ready gives how many full steps Next has rows for.
	Ready() int
}

var _ Planner = (*rows.Planner)(nil)

// Resume is what the journal and the checkpoints of an earlier life of this
// run say.
type Resume struct {
	Lineage     runner.Lineage            // the newest one
	Excluded    bool                      // an ExcludeRecord is there
	Arranged    []runner.ArrangeRecord    // all, in order
	Plans       []runner.PlanRecord       // the newest of each step, by step without a gap, from the oldest checkpoint's step + 1 at the latest to the last
	Committed   runner.Step               // newest commit of the surviving lineage
	Commits     []runner.CommitRecord     // of the surviving lineage, of steps in Plans; losses by source come of them
	Checkpoints []runner.CheckpointRecord // those whose directories are there, by step
	Adopted     []runner.CheckpointRecord // likewise, proved whole; the journal lacks these records
	Strays      []string                  // names of checkpoints that are not to be used
	Evaluations []runner.EvaluationRecord // all of the surviving lineage
	Rows        uint64                    // rows committed through step Committed
	Samples     uint64                    // likewise: pieces of those rows
	Tokens      uint64                    // likewise
	Skipped     uint64                    // samples settled without training: excluded, or in rows that were skipped
	Trained     bool                      // LossFirst and LossLast are set
	LossFirst   float64                   // of the first commit of the surviving lineage
	LossLast    float64                   // of the newest
}
