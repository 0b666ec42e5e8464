package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Kernel is all calls of one kernel of a GPU, or of one operator of a CPU.
type Kernel struct {
	Name  string  `json:"name"`
	MS    float64 `json:"ms"`
	Calls int     `json:"calls"`
}

// The groups that kernels are told apart in, in the order of a table.
const (
	matmul    = "matmul"
	attention = "attention"
	optimiser = "optimiser"
	loss      = "loss"
	copies    = "copies"
	others    = "others"
)

var groups = []string{matmul, attention, optimiser, loss, copies, others}

// marks are parts of names, in lower case, and the group that they show. The
// first that fits decides: what a compiler fuses carries the names of all that
// is in it, and a copy that a softmax was fused with is the softmax.
var marks = []struct {
	part, group string
}{
	{"flex_attention", attention}, {"scaled_dot_product", attention}, {"fmha", attention}, {"flash", attention}, {"_safe_softmax", attention},
	{"cross_entropy", loss}, {"nll_loss", loss}, {"log_softmax", loss}, {"softmax", loss}, {"logsumexp", loss}, {"headloss", loss},
	{"gemm", matmul}, {"gemv", matmul}, {"nvjet", matmul}, {"cutlass", matmul}, {"xmma", matmul}, {"splitk", matmul}, {"wgmma", matmul},
	{"aten::mm", matmul}, {"aten::_scaled_mm", matmul}, {"aten::addmm", matmul}, {"aten::bmm", matmul}, {"aten::baddbmm", matmul}, {"triton_tem_fused_mm", matmul}, {"triton_tem_fused_addmm", matmul}, {"aten::matmul", matmul},
	{"memcpy", copies}, {"memset", copies}, {"copy", copies}, {"aten::cat", copies}, {"triton_poi_fused_cat", copies}, {"catarray", copies}, {"aten::clone", copies}, {"aten::contiguous", copies},
}

// groupOf names the group of a kernel by its name.
func groupOf(name string) string {
	name = strings.ToLower(name)
	for _, m := range marks {
		if strings.Contains(name, m.part) {
			return m.group
		}
	}
	return others
}

// grouped adds up milliseconds by group: what runs in a row by its name, all
// that an update runs as the optimiser's.
func grouped(row, update []Kernel) map[string]float64 {
	out := map[string]float64{}
	for _, k := range row {
		out[groupOf(k.Name)] += k.MS
	}
	for _, k := range update {
		out[optimiser] += k.MS
	}
	return out
}

// Span is when something ran, in microseconds.
type Span [2]float64

// Gap is all the time that nothing ran between two neighbours.
type Gap struct {
	Before  string  `json:"before"` // what ended
	After   string  `json:"after"`  // what began
	MS      float64 `json:"ms"`     // of all of them
	Calls   int     `json:"calls"`
	Largest float64 `json:"largest_ms"`
}

// stated names it for a table.
func (g Gap) stated() string {
	return fmt.Sprintf("gap: %.40s, %.40s (%d, at most %.3f ms)", g.Before, g.After, g.Calls, g.Largest)
}

// gaps gives how long nothing ran between the first span's start and the last
// one's end, and how long that was in all. Spans may overlap, as those of
// several streams do, and come in any order.
func gaps(spans []Span) (idle, whole float64) {
	if len(spans) == 0 {
		return 0, 0
	}
	in := slices.Clone(spans)
	slices.SortFunc(in, func(a, b Span) int { return cmp.Compare(a[0], b[0]) })
	end := in[0][1]
	for _, s := range in[1:] {
		idle += max(0, s[0]-end)
		end = max(end, s[1])
	}
	return idle, end - in[0][0]
}
