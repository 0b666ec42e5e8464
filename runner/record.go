package runner

// Record is one entry of the journal: what was arranged, planned, decided and
// settled. The set is closed. Records are values; how they are laid out in
// bytes is the journal's business. The core numbers them from 1 in each
// supervisor's life.
type Record interface{ record() string }

// RecordType gives a record's name.
func RecordType(r Record) string { return r.record() }

// The records, in the order in which a run first writes them.
type (
	// StartRecord opens a supervisor's life: the first record after every start.
	StartRecord struct {
		Manifest Digest  // of manifest.json
		Lineage  Lineage // the lineage that was current before this start; 0 in a new run
	}
	// ExcludeRecord settles samples that are never planned, once, before any ArrangeRecord.
	ExcludeRecord struct {
		Samples []Sample
		Reason  string // "no valid anchor"
	}
	// ArrangeRecord is a horizon of the scheduler's order: the samples (a sample
	// once for each of its draws) that come next. Rows and step plans follow
	// from these by a pure function (rows.Planner), in the order of the records.
	ArrangeRecord struct {
		Epoch   uint32
		Samples []Sample
	}
	// PlanRecord is step plan n; Chain is rows.Chain of it and of chain(n-1). A later one of the same step replaces it, and it
	// replaces the chains of all later ones. Rows has the plans of the rows it names.
	PlanRecord struct {
		Plan  StepPlan
		Rows  []RowPlan
		Chain Chain
	}
	// RestoreRecord says that the run goes on from step s in a new lineage. Commits
	// of later steps in older lineages no longer count.
	RestoreRecord struct {
		Step    Step
		Lineage Lineage
		Chain   Chain
	}
	// CommitRecord decides a step. Weight and Norm are f32 bits.
	CommitRecord struct {
		Step    Step
		Lineage Lineage
		Rows    []RowLoss // by rank, then micro
		Weight  uint32
		Norm    uint32
		Chain   Chain
	}
	// SkipRecord settles a row without training it. The revised PlanRecord follows it.
	SkipRecord struct {
		Step    Step
		Lineage Lineage
		Row     Row
		Samples []Sample // one entry a piece
		Draws   []uint32 // likewise
		Reason  string
	}
	// CheckpointRecord says that an image was published, after its rename was durable.
	CheckpointRecord struct {
		Step  Step
		Name  string
		Image Digest
		Chain Chain
		Best  bool // lowest held-out loss so far
	}
	// EvaluationRecord is a result, one record per kind of question.
	EvaluationRecord struct {
		Step        Step
		What        string // "loss", "decode" or "plain"
		Prompts     uint32
		Tokens      uint64
		Forwards    uint64
		BusyUS      uint64
		Lossless    bool
		Numerator   float64
		Denominator float64
		// Of prompts that do not loop; for acceptance_nonlooping.
		NonLoopingTokens   uint64
		NonLoopingForwards uint64
		Looping            uint32
	}
	// EndRecord closes a supervisor's life in good order.
	EndRecord struct {
		Code   int
		Reason string
		Step   Step
	}
)

func (StartRecord) record() string      { return "started" }
func (ExcludeRecord) record() string    { return "excluded" }
func (ArrangeRecord) record() string    { return "arranged" }
func (PlanRecord) record() string       { return "plan" }
func (RestoreRecord) record() string    { return "restore" }
func (CommitRecord) record() string     { return "commit" }
func (SkipRecord) record() string       { return "skip" }
func (CheckpointRecord) record() string { return "checkpoint" }
func (EvaluationRecord) record() string { return "evaluation" }
func (EndRecord) record() string        { return "end" }
