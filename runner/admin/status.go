package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// State is where a run stands. The set is closed.
type State string

// The states of a run. Lost is never written by the run itself: readers say so
// of a status whose process is gone.
const (
	Starting  State = "starting"  // up to the first training step
	Training  State = "training"  // steps are being committed
	Finishing State = "finishing" // last evaluation, export
	Stopping  State = "stopping"  // asked to end early
	Ended     State = "ended"     // over; Exit says how
	Lost      State = "lost"      // its process is gone and wrote no end
)

// Over reports whether nothing of the run is running.
func (s State) Over() bool { return s == Ended || s == Lost }

// Status is a run at a moment: `status --json` and status.json. Fields are only
// added. Figures that are not known yet are null.
type Status struct {
	Name          string            `json:"name"`
	State         State             `json:"state"`
	Step          runner.Step       `json:"step"`
	StepsTotal    runner.Step       `json:"steps_total"`
	Epoch         uint32            `json:"epoch"`
	RowsCommitted uint64            `json:"rows_committed"`
	Loss          *float64          `json:"loss"`
	Losses        []SourceLoss      `json:"losses"`       // recent, of the first sources of the data
	Sources       int               `json:"sources"`      // how many there are
	TokensPerS    *float64          `json:"tokens_per_s"` // over the last seconds
	Acceptance    *float64          `json:"acceptance"`
	AcceptanceAt  *runner.Step      `json:"acceptance_step"` // that was evaluated
	Workers       []WorkerStatus    `json:"workers"`
	Devices       []DeviceStatus    `json:"devices"` // GPUs of the run; empty on a CPU
	Gate          GateStatus        `json:"gate"`
	Arenas        []ArenaStatus     `json:"arenas"`
	Failures      []runner.Failure  `json:"failures"`
	Lineage       runner.Lineage    `json:"lineage"`
	Stage         string            `json:"stage"` // name of the running stage
	Stages        []Stage           `json:"stages"`
	Images        []ImageStatus     `json:"images"`
	Checkpoint    *CheckpointStatus `json:"checkpoint"` // the newest
	Restored      *RestoreStatus    `json:"restored"`   // the newest of this life; null: none
	HeldoutLoss   *float64          `json:"heldout_loss"`
	Skipped       uint64            `json:"skipped"`  // samples settled without training
	Degraded      []Reason          `json:"degraded"` // what does not work as it should
	Scheduler     string            `json:"scheduler"`
	ImageStall    Stall             `json:"image_stall"`
	Plugin        *PluginStatus     `json:"plugin"`    // that schedules; null: the built-in alone
	Decisions     []Decision        `json:"decisions"` // who made the newest of each kind
	Directory     string            `json:"directory"`
	Socket        string            `json:"socket"`
	Process       Process           `json:"process"`
	StartedAt     time.Time         `json:"started_at"`
	UpdatedAt     time.Time         `json:"updated_at"`
	Exit          *int              `json:"exit"`        // null while running, and when lost
	ExitReason    string            `json:"exit_reason"` // one sentence, at the end
	Hint          string            `json:"hint"`        // what to do next, at the end
}

// SourceLoss is the recent mean loss of a source of the data: of the rows that
// its samples lie in, by its share of their anchors.
type SourceLoss struct {
	Source string   `json:"source"`
	Loss   *float64 `json:"loss"` // null: not trained on
}

// WorkerStatus is one worker.
type WorkerStatus struct {
	Name        runner.Worker       `json:"name"`
	Role        runner.Role         `json:"role"`
	Pid         int                 `json:"pid"` // 0: no process
	Generation  runner.Generation   `json:"generation"`
	State       string              `json:"state"` // as package life names them
	Device      string              `json:"device"`
	Order       string              `json:"order"`    // the order being worked on, or empty
	SinceMS     int64               `json:"since_ms"` // age of State, or of Order where there is one
	RSSBytes    uint64              `json:"rss_bytes"`
	Certificate *runner.Certificate `json:"certificate"`
	Phase       string              `json:"phase"`    // of its start: of warm-up, or what its launch waits for
	Restarts    int                 `json:"restarts"` // deaths that count
}

// DeviceStatus is one GPU, as the probe saw it last. Figures that the driver
// does not give are null; Status is unknown where it has not answered in time.
type DeviceStatus struct {
	UUID             string     `json:"uuid"`
	Index            int        `json:"index"` // nvidia-smi's
	Name             string     `json:"name"`
	Status           Grade      `json:"status"`
	Detail           string     `json:"detail"` // why it is not healthy
	At               *time.Time `json:"at"`     // of the sample
	Utilisation      *float64   `json:"utilisation"`
	MemoryUsedBytes  *uint64    `json:"memory_used_bytes"`
	MemoryTotalBytes *uint64    `json:"memory_total_bytes"`
	PowerW           *float64   `json:"power_w"`
	PowerLimitW      *float64   `json:"power_limit_w"`
	TemperatureC     *float64   `json:"temperature_c"`
	ECCCorrected     *uint64    `json:"ecc_corrected"` // since the driver was loaded
	ECCUncorrected   *uint64    `json:"ecc_uncorrected"`
	Throttle         []string   `json:"throttle"`        // why its clocks are low
	RecoveryAction   *string    `json:"recovery_action"` // "none", or what the driver wants done
	Processes        []GPUUser  `json:"processes"`       // that compute on it, the first of them
	ProcessCount     *uint64    `json:"process_count"`
}

// GPUUser is a process on a GPU.
type GPUUser struct {
	Pid         int     `json:"pid"`
	MemoryBytes *uint64 `json:"memory_bytes"`
}

// GateStatus is the warm-up gate. Holder is the first of Holders.
type GateStatus struct {
	Width   int             `json:"width"`
	Holder  *runner.Worker  `json:"holder"`
	Holders []runner.Worker `json:"holders"`
	Queue   []Queued        `json:"queue"`
}

// Queued is a worker that waits for the gate.
type Queued struct {
	Worker   runner.Worker `json:"worker"`
	WaitedMS int64         `json:"waited_ms"`
}

// ArenaStatus is one arena, named by the worker that fills it.
type ArenaStatus struct {
	Worker   runner.Worker `json:"worker"`
	Kind     string        `json:"kind"` // memfd or cuda_vmm
	Bytes    uint64        `json:"bytes"`
	HandOffs uint64        `json:"hand_offs"`
	Slots    []SlotStatus  `json:"slots"`
}

// SlotStatus is one slot. Holder is null where nobody has a lease.
type SlotStatus struct {
	State   string         `json:"state"` // as package lease names them
	Version runner.Version `json:"version"`
	Holder  *runner.Worker `json:"holder"`
	Row     runner.Row     `json:"row"`
}

// Stage is a part of the run, in order: environment, target, regenerate,
// prepare, launch, warm_up, evaluate_before, train, evaluate_after, export.
type Stage struct {
	Name    string             `json:"name"`
	State   string             `json:"state"` // waiting, running, done, reused, skipped, failed or stopped
	Done    uint64             `json:"done"`
	Total   uint64             `json:"total"` // 0: not known
	ETAS    *float64           `json:"eta_s"`
	Seconds float64            `json:"seconds"`         // spent so far
	Phase   string             `json:"phase,omitempty"` // what it does now, where it has parts
	Figures map[string]float64 `json:"figures,omitempty"`
}

// The states of a stage.
const (
	StageWaiting = "waiting"
	StageRunning = "running"
	StageDone    = "done"
	StageReused  = "reused" // an earlier run's result was taken
	StageSkipped = "skipped"
	StageFailed  = "failed"
	StageStopped = "stopped" // on request, before it was done
)

// PhaseElsewhere is the phase of a stage whose result another run is making.
const PhaseElsewhere = "waiting for another run that builds it"

// ImageStatus is one image in memory.
type ImageStatus struct {
	Step  runner.Step `json:"step"`
	Bytes uint64      `json:"bytes"`
	Valid bool        `json:"valid"`
}

// Stall is how long commits waited for an image of the step before to be taken,
// since this supervisor began.
type Stall struct {
	Commits  uint64   `json:"commits"`   // that waited
	Seconds  float64  `json:"seconds"`   // in all
	LongestS float64  `json:"longest_s"` // of one
	Share    *float64 `json:"share"`     // of the time of training: of a step, on average; null before it
}

// RestoreStatus is where a run went on after its drafters were lost, or when it
// was resumed.
type RestoreStatus struct {
	Lineage runner.Lineage `json:"lineage"` // that began with it
	Step    runner.Step    `json:"step"`    // whose state was restored
	Undone  runner.Step    `json:"undone"`  // so many decided steps are trained again
}

// CheckpointStatus is the newest checkpoint on disk.
type CheckpointStatus struct {
	Name string      `json:"name"`
	Step runner.Step `json:"step"`
	At   time.Time   `json:"at"`
}

// PluginRefused is the state of a plugin that the run was to use and cannot.
const PluginRefused = "refused"

// PluginStatus is a scheduling plugin.
type PluginStatus struct {
	Name         string      `json:"name"`
	Version      string      `json:"version"`
	SHA256       string      `json:"sha256"` // of its program, as pinned
	State        string      `json:"state"`  // starting, running, quarantined, stopped or refused
	Pid          int         `json:"pid"`
	APIVersion   uint32      `json:"api_version"`
	Capabilities []string    `json:"capabilities"`
	Starts       int         `json:"starts"`
	Calls        uint64      `json:"calls"`     // questions that it was asked, and that are over; one that was given up has no answer
	Answers      uint64      `json:"answers"`   // that were used
	Refused      uint64      `json:"refused"`   // answers that were not used
	Fallbacks    uint64      `json:"fallbacks"` // questions that the built-in answered in its place, also while it rested
	Strikes      int         `json:"strikes"`
	Ends         int         `json:"ends"`      // how often it was ended or died
	Last         string      `json:"last"`      // why, the last time; or why it is refused
	Until        *time.Time  `json:"until"`     // of its quarantine
	RSSBytes     uint64      `json:"rss_bytes"` // that it held at the last look, as the two below; 0: not known
	Threads      int         `json:"threads"`
	Goroutines   int         `json:"goroutines"` // of a plugin in Go
	Waiting      *PluginWait `json:"waiting"`    // null: it owes no answer
}

// PluginWait is the question that waits the longest for a plugin's answer.
type PluginWait struct {
	Question   string `json:"question"` // place, arrange, assign, on_failure, or one of its start
	WaitedMS   int64  `json:"waited_ms"`
	DeadlineMS int64  `json:"deadline_ms"` // of the whole wait; then the built-in answers
	Questions  int    `json:"questions"`   // that wait, this one included
}

// LongWait is from when on a wait is worth a person's word.
const LongWait = 2 * time.Second

// tooLongWait is the least that a run is not well for.
const tooLongWait = 10 * time.Second

// TooLong says that so much of the deadline is over that the run is not well: half
// of it, and more than a plugin that computes for long by its user's leave is
// likely to take. The end of a shorter deadline says it soon enough.
func (w *PluginWait) TooLong() bool {
	return w != nil && w.WaitedMS >= max(tooLongWait.Milliseconds(), w.DeadlineMS/2)
}

// String says it in words; empty for one that is short.
func (w *PluginWait) String() string {
	if w == nil || w.WaitedMS < LongWait.Milliseconds() {
		return ""
	}
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	said := fmt.Sprintf("waits %s of %s for %s", ms(w.WaitedMS).Round(time.Second), ms(w.DeadlineMS), w.Question)
	if w.Questions > 1 {
		said += fmt.Sprintf(" and %d more", w.Questions-1)
	}
	return said
}

// DecidedBy says in words who made the newest decision of each kind.
func (s Status) DecidedBy() string {
	said := make([]string, len(s.Decisions))
	for i, d := range s.Decisions {
		said[i] = d.What + " by " + d.By
	}
	return strings.Join(said, ", ")
}

// well says in words how a plugin does to whom nothing happened.
func (p *PluginStatus) well(s Status) string {
	said := fmt.Sprintf("plugin %s %s is %s, %d questions, %d answers used", p.Name, p.Version, p.State, p.Calls, p.Answers)
	if wait := p.Waiting.String(); wait != "" {
		said += "; " + wait
	}
	if by := s.DecidedBy(); by != "" {
		said += "; " + by
	}
	return said
}

// Decision is one that a scheduling plugin may make, and who made it.
type Decision struct {
	What   string     `json:"what"` // place, arrange or on_failure
	By     string     `json:"by"`   // the plugin's name, or built-in
	Detail string     `json:"detail"`
	At     *time.Time `json:"at"`
}

// Reason is why a run is degraded: a short name, and a sentence for people.
type Reason struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
}
