package admin

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Summary is summary.json, written at every end of a run, good or bad. Fields
// are only added; figures that were never measured are null.
type Summary struct {
	Name                 string          `json:"name"`
	Steps                runner.Step     `json:"steps"`
	Rows                 uint64          `json:"rows"`
	Samples              uint64          `json:"samples"`
	Tokens               uint64          `json:"tokens"`
	LossFirst            *float64        `json:"loss_first"`
	LossLast             *float64        `json:"loss_last"`
	AcceptanceBefore     *float64        `json:"acceptance_before"`
	AcceptanceAfter      *float64        `json:"acceptance_after"`
	AcceptanceNonlooping *float64        `json:"acceptance_nonlooping"`
	LoopingShare         *float64        `json:"looping_share"`
	TargetTop1           *float64        `json:"target_top1"`
	Prompts              uint32          `json:"prompts"`
	Lossless             *bool           `json:"lossless"`
	Speedup              *float64        `json:"speedup"`
	TokensPerS           *float64        `json:"tokens_per_s"` // over all of training
	Workers              []SummaryWorker `json:"workers"`
	Gate                 SummaryGate     `json:"gate"`
	Arenas               []SummaryArena  `json:"arenas"`
	Exit                 int             `json:"exit"`

	PromptsNonlooping   uint32             `json:"prompts_nonlooping"`
	PlainTokensPerS     *float64           `json:"plain_tokens_per_s"`  // decoding without a drafter
	DecodeTokensPerS    *float64           `json:"decode_tokens_per_s"` // speculative decoding
	HeldoutLoss         *float64           `json:"heldout_loss"`
	BlocksPerRow        int                `json:"blocks_per_row"` // anchors, in all draws
	Skipped             uint64             `json:"skipped"`
	Lineage             runner.Lineage     `json:"lineage"`
	Chain               string             `json:"chain"` // hex, of the last step plan
	Failures            []runner.Failure   `json:"failures"`
	Degraded            []Reason           `json:"degraded"`
	Stages              []Stage            `json:"stages"`
	Export              string             `json:"export"`     // directory, or empty
	Checkpoint          string             `json:"checkpoint"` // newest, or empty
	StartedAt           time.Time          `json:"started_at"`
	EndedAt             time.Time          `json:"ended_at"`
	ExitReason          string             `json:"exit_reason"`
	Hint                string             `json:"hint"`
	Next                string             `json:"next"` // how to go on after a stop or a failure that may be retried, or empty
	ImageStall          Stall              `json:"image_stall"`
	Restored            *RestoreStatus     `json:"restored"`              // the newest of this life; null: none
	SupervisorPeakBytes uint64             `json:"supervisor_peak_bytes"` // VmHWM
	SupervisorCPUS      float64            `json:"supervisor_cpu_s"`
	SupervisorCPU       SupervisorCPU      `json:"supervisor_cpu"`
	Figures             map[string]float64 `json:"figures,omitempty"`
	Scheduler           string             `json:"scheduler"` // who decided: balanced, fixed or the plugin's name
	Plugin              *SummaryPlugin     `json:"plugin"`    // null where none was asked for, or the run ended before it was started
}

// SupervisorCPU divides the CPU time of the supervisor's own process, its
// workers and jobs not counted, by what it was doing.
type SupervisorCPU struct {
	// Parts are seconds: start (environment, target, data), launch, warm_up (until
	// the first step is decided), train (to the last), finish (last evaluation,
	// saving, draining), export. What stands still has no key.
	Parts map[string]float64 `json:"parts_s"`
	Rows  uint64             `json:"train_rows"`   // of the steps decided after the first, those trained again included
	RowMS *float64           `json:"train_row_ms"` // train, for each of them; null without rows
}

// SummaryPlugin is what a scheduling plugin did, since this supervisor began.
type SummaryPlugin struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	SHA256    string `json:"sha256"`    // of its program, as pinned
	State     string `json:"state"`     // at the end; refused where it was never used
	Answers   uint64 `json:"answers"`   // that were used
	Refused   uint64 `json:"refused"`   // that were not
	Fallbacks uint64 `json:"fallbacks"` // questions that the built-in answered in its place
	Ends      int    `json:"ends"`      // how often it was ended or died
	Samples   uint64 `json:"samples"`   // that it arranged
	Moved     uint64 `json:"moved"`     // of them, elsewhere than the built-in has them
	Last      string `json:"last"`      // what went wrong last; empty where nothing did
}

// SummaryWorker is one worker over all its generations.
type SummaryWorker struct {
	Name        runner.Worker       `json:"name"`
	Role        runner.Role         `json:"role"`
	Device      string              `json:"device"`
	Generations runner.Generation   `json:"generations"`
	Certificate *SummaryCertificate `json:"certificate"` // the last; null where none was given
	// Usage is the time from the first order to train to the last decision, in
	// seconds, by what it went to: train, commit, produce, evaluate; or by what was
	// waited for: vote (figures and other ranks), join, turn, row, slot, nothing
	// (to do); or absent.
	Usage map[string]float64 `json:"usage_s"`
	// Done is how many of these ended in that time: train (rows, each in all its
	// draws), commit, produce (rows).
	Done map[string]uint64 `json:"done"`
}

// SummaryCertificate is what a certificate comes down to.
type SummaryCertificate struct {
	Attention          string   `json:"attention"`
	Buckets            []uint32 `json:"buckets"`
	Graphs             uint32   `json:"graphs"`
	DenseCalls         uint64   `json:"dense_calls"`
	SecondPassCompiles uint32   `json:"second_pass_compiles"`
	Seconds            float64  `json:"seconds"` // in all
	Cache              string   `json:"cache"`   // cold, warm or none
	PeakBytes          uint64   `json:"peak_bytes"`
	Precision          string   `json:"precision,omitempty"`    // of matrix products: compute_dtype or fp8
	FP8Products        uint64   `json:"fp8_products,omitempty"` // of the warm-up
}

// SummaryGate is who went through the gate, in order.
type SummaryGate struct {
	Width      int             `json:"width"`
	MaxHolders int             `json:"max_holders"`
	Sequence   []runner.Worker `json:"sequence"`
}

// SummaryArena is one arena at the end.
type SummaryArena struct {
	Kind     string `json:"kind"`
	Slots    int    `json:"slots"`
	Bytes    uint64 `json:"bytes"`
	HandOffs uint64 `json:"hand_offs"`
}

// Summarise brings a certificate down to what the summary keeps.
func Summarise(c *runner.Certificate) *SummaryCertificate {
	if c == nil {
		return nil
	}
	return &SummaryCertificate{Attention: c.Attention, Buckets: c.Buckets, Graphs: c.Graphs,
		DenseCalls: c.DenseCalls, SecondPassCompiles: c.SecondPassCompiles, Seconds: c.Seconds["total"],
		Cache: c.Cache, PeakBytes: c.PeakBytes, Precision: c.Precision, FP8Products: c.FP8Products}
}
