package bench

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// Shape is what is computed on: a drafter, its row, and how often. It is told
// to Python as it stands in a report.
type Shape struct {
	Workload     string `json:"workload"` // W, tiny, or custom
	Tokens       int    `json:"S"`        // context tokens of a row
	Anchors      int    `json:"N"`        // blocks of a row
	Block        int    `json:"block"`    // tokens of a block
	Vocabulary   int    `json:"vocabulary"`
	Hidden       int    `json:"hidden"`
	Intermediate int    `json:"intermediate"`
	Layers       int    `json:"layers"`   // of the drafter
	Captured     int    `json:"captured"` // layers of the target
	Heads        int    `json:"heads"`
	KVHeads      int    `json:"kv_heads"`
	HeadDim      int    `json:"head_dim"`
	DType        string `json:"dtype"`               // of compute; masters are float32
	Precision    string `json:"precision,omitempty"` // of matrix products: fp8, or empty: dtype
	Parameters   uint64 `json:"parameters"`          // trained; 0 until it is measured
	Rows         int    `json:"rows"`                // measured, one a step; 0 where rows are not counted
}

// The workloads that have names: the reference of all figures for GPUs, and one
// for a look at the way itself.
const (
	WorkloadW    = "W"
	WorkloadTiny = "tiny"
)

// Named gives a workload by its name.
func Named(name string) (Shape, error) {
	switch name {
	case WorkloadW:
		return Shape{Workload: name, Tokens: 3072, Anchors: 512, Block: 16, Vocabulary: 151_936, Hidden: 4096, Intermediate: 12_288,
			Layers: 5, Captured: 5, Heads: 32, KVHeads: 8, HeadDim: 128, DType: "bfloat16"}, nil
	case WorkloadTiny:
		return Shape{Workload: name, Tokens: 64, Anchors: 8, Block: 4, Vocabulary: 128, Hidden: 64, Intermediate: 128,
			Layers: 2, Captured: 2, Heads: 2, KVHeads: 1, HeadDim: 32, DType: "float32"}, nil
	}
	return Shape{}, runner.Errorf(runner.Invalid, "choose workload: want %s or %s, got %q", WorkloadW, WorkloadTiny, name)
}

// headDim is the reference's, which a smaller hidden size keeps as long as it can.
const headDim = 128

// Scaled divides hidden size, tokens, anchors and vocabulary; blocks and layers stay.
func (s Shape) Scaled(by int) (Shape, error) {
	if by < 1 || s.Hidden%by != 0 || s.Tokens%by != 0 {
		return s, runner.Errorf(runner.Invalid, "scale workload %s: want a divisor of %d and %d, got %d", s.Workload, s.Hidden, s.Tokens, by)
	}
	if by == 1 {
		return s, nil
	}
	s.Workload = fmt.Sprintf("%s/%d", s.Workload, by)
	s.Tokens, s.Anchors, s.Vocabulary = s.Tokens/by, max(1, s.Anchors/by), s.Vocabulary/by
	return s.withHidden(s.Hidden / by), nil
}

// withHidden sets the hidden size with what follows from it: the MLP, three
// times as wide, and heads, a quarter of them of keys and values.
func (s Shape) withHidden(hidden int) Shape {
	s.Hidden, s.Intermediate = hidden, 3*hidden
	s.HeadDim = min(headDim, hidden)
	s.Heads = max(1, hidden/s.HeadDim)
	s.KVHeads = max(1, s.Heads/4)
	return s
}

// Sizes are single sizes that replace a workload's; 0: the workload's.
type Sizes struct {
	Tokens, Anchors, Block, Vocabulary, Hidden, Layers, Captured int
	DType                                                        string
}

// With puts single sizes in.
func (s Shape) With(o Sizes) Shape {
	if o != (Sizes{}) {
		s.Workload = "custom"
	}
	if o.Hidden > 0 {
		s = s.withHidden(o.Hidden)
	}
	for into, size := range map[*int]int{&s.Tokens: o.Tokens, &s.Anchors: o.Anchors, &s.Block: o.Block, &s.Vocabulary: o.Vocabulary, &s.Layers: o.Layers, &s.Captured: o.Captured} {
		if size > 0 {
			*into = size
		}
	}
	if o.DType != "" {
		s.DType = o.DType
	}
	return s
}

// Bounds of what a worker takes (python/dflash_runner/config.py).
const (
	leastTokens  = 8
	leastHeadDim = 16 // of compiled attention
	mostCaptured = 33 // of the 36 layers that the target is said to have
)

// Check refuses what no worker could run, on a GPU or on a CPU.
func (s Shape) Check(cuda bool) error {
	for _, c := range []struct {
		name     string
		got, min int
		max      int // 0: no bound
	}{
		{"tokens", s.Tokens, max(leastTokens, s.Block), 1 << 20}, {"block", s.Block, 2, 256}, {"anchors", s.Anchors, 1, s.Tokens - 1},
		{"vocabulary", s.Vocabulary, 8, 1 << 22}, {"hidden", s.Hidden, 8, 1 << 16}, {"layers", s.Layers, 1, 128}, {"captured", s.Captured, 1, mostCaptured},
	} {
		if c.got < c.min || c.got > c.max {
			return runner.Errorf(runner.Invalid, "check workload %s: --%s: want %d to %d, got %d", s.Workload, c.name, c.min, c.max, c.got)
		}
	}
	switch {
	case s.Hidden%s.HeadDim != 0 || s.HeadDim%2 != 0:
		return runner.Errorf(runner.Invalid, "check workload %s: --hidden: want an even number up to %d, or a multiple of it, got %d", s.Workload, headDim, s.Hidden)
	case cuda && s.HeadDim < leastHeadDim:
		return runner.Errorf(runner.Invalid, "check workload %s: --hidden: want at least %d on a GPU, got %d", s.Workload, leastHeadDim, s.Hidden)
	case s.Precision != "" && s.Precision != config.PrecisionFP8:
		return runner.Errorf(runner.Invalid, "check workload %s: --precision: want compute_dtype or fp8, got %q", s.Workload, s.Precision)
	case !slices.Contains([]string{"float32", "bfloat16"}, s.DType):
		return runner.Errorf(runner.Invalid, "check workload %s: --dtype: want float32 or bfloat16, got %q", s.Workload, s.DType)
	}
	return nil
}

// stated names what a rate of tokens depends on: it is worth nothing without.
func (s Shape) stated() string {
	return fmt.Sprintf("N %d, block %d, S %d, vocabulary %d", s.Anchors, s.Block, s.Tokens, s.Vocabulary)
}

// String is the shape as a table shows it.
func (s Shape) String() string {
	text := fmt.Sprintf("workload %s: %s, hidden %d, %d layers, %d captured, %d and %d heads of %d, %s", s.Workload, s.stated(), s.Hidden, s.Layers, s.Captured,
		s.Heads, s.KVHeads, s.HeadDim, s.DType)
	if s.Precision != "" {
		text += ", products in " + s.Precision
	}
	if s.Parameters > 0 {
		text += fmt.Sprintf(", %d parameters", s.Parameters)
	}
	if s.Rows > 0 {
		text += fmt.Sprintf(", %d rows", s.Rows)
	}
	return text
}
