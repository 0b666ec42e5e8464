package plan

// Estimate is when the first step will be done, from the start of the workers.
// Environment, target and data come before, where they are not cached.
type Estimate struct {
	Seconds          float64 `json:"seconds"`
	LaunchSeconds    float64 `json:"launch_s"`
	WarmUpSeconds    float64 `json:"warm_up_s"`
	StepSeconds      float64 `json:"step_s"`
	AssumedFLOPsPerS float64 `json:"assumed_flops_per_s"` // of one worker
	StepFLOPs        float64 `json:"step_flops"`          // of all drafters
}

// What is assumed of machines, rounded down from what was measured: one CPU core
// in float32 at small sizes, and two thirds of an H200's matmul rate in bfloat16.
const (
	coreFLOPs     = 10e9
	gpuFLOPs      = 500e12
	launchSeconds = 8.0  // Python, torch, the model
	graphSeconds  = 12.0 // one cold graph under flex; two for a bucket
)

// estimate adds launch, warm-up (two passes over every bucket, workers one after
// another) and one step. A backward is two forwards.
func (w work) estimate(m Machine) Estimate {
	c := w.config
	e := Estimate{LaunchSeconds: launchSeconds, AssumedFLOPsPerS: coreFLOPs * float64(c.Workers.Threads)}
	drafters := int(c.Workers.Drafters)
	workers, parallel := int(c.Workers.Targets)+drafters, max(1, min(drafters, m.Cores/max(c.Workers.Threads, 1)))
	if c.Workers.Device == "cuda" {
		e.AssumedFLOPsPerS, parallel = gpuFLOPs, drafters
	}
	row := w.drafterRow() + w.targetRow()
	e.StepFLOPs = w.drafterRow() * float64(c.Training.RowsPerStep)
	e.WarmUpSeconds = 2 * row * float64(len(c.Training.Buckets)*workers) / float64(max(1, c.WarmUp.Width)) / e.AssumedFLOPsPerS
	if c.Drafter.Attention == "flex" {
		e.WarmUpSeconds += 2 * graphSeconds * float64(len(c.Training.Buckets)) // the others find them in the cache
	}
	if c.Target.Attention == "flex" {
		e.WarmUpSeconds += graphSeconds * float64(len(c.Training.Buckets)) // a forward alone
	}
	e.StepSeconds = e.StepFLOPs/float64(parallel)/e.AssumedFLOPsPerS + w.targetRow()*float64(c.Training.RowsPerStep)/float64(c.Workers.Targets)/e.AssumedFLOPsPerS
	e.Seconds = e.LaunchSeconds + e.WarmUpSeconds + e.StepSeconds
	return e
}

// drafterRow is the arithmetic of one row, forward and backward.
func (w work) drafterRow() float64 {
	d, s, q := w.drafter, float64(w.rows.Bucket), float64(w.rows.Anchors*w.rows.BlockSize)
	hidden, kv, all := float64(d.Hidden), float64(d.KVHeads*d.HeadDim), float64(d.Heads*d.HeadDim)
	noise := 2 * q * (2*hidden*all + 2*hidden*kv + 3*hidden*float64(d.Intermediate))
	context := 2 * s * 2 * hidden * kv
	attention := 4 * q * (s + float64(w.rows.BlockSize)) * all
	projection := 2 * s * float64(w.captured) * hidden * hidden
	head := 2 * q * hidden * float64(d.Vocab)
	once := 3*(float64(d.Layers)*(noise+context+attention)+projection) + 2*head // embedding and head take no gradient of their own
	return once * float64(w.config.Training.DrawsPerRow)
}

// targetRow is the arithmetic of one row's forward, up to the last captured layer.
func (w work) targetRow() float64 {
	t, s := w.target, float64(w.rows.Bucket)
	hidden, kv, all := float64(t.Hidden), float64(t.KVHeads*t.HeadDim), float64(t.Heads*t.HeadDim)
	return float64(w.deepest) * (2*s*(2*hidden*all+2*hidden*kv+3*hidden*float64(t.Width())) + 4*s*s*all)
}
