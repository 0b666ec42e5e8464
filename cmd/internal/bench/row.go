package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// attentions and fusions are the ways that row.py knows to make a target's row
// besides the worker's own (python/bench/row_ways.py).
var (
	attentions = []string{"sdpa", "efficient", "cudnn", "math", "causal", "varlen", "flex"}
	fusions    = []string{"norms", "blocks"}
)

// CheckWays refuses names that are no way to make a row: an attention, a
// fusion, or one of each with a plus sign.
func CheckWays(ways []string) error {
	for _, way := range ways {
		seen := [2]int{}
		for _, part := range strings.Split(way, "+") {
			switch {
			case slices.Contains(attentions, part):
				seen[0]++
			case slices.Contains(fusions, part):
				seen[1]++
			default:
				seen[0] = 2
			}
		}
		if seen[0] > 1 || seen[1] > 1 {
			return runner.Errorf(runner.Invalid, "choose ways: --try: want one of %s, or one of %s, or both with a plus sign, got %q",
				strings.Join(attentions, ", "), strings.Join(fusions, ", "), way)
		}
	}
	return nil
}

// askedRow is a question to row.py.
type askedRow struct {
	asked
	Try []string `json:"try"`
}

// way is how long a row takes one way, in milliseconds.
type way struct {
	Following float64 `json:"following_ms"` // among some that follow one another
	Alone     float64 `json:"alone_ms"`     // from a still device to a still device
	Host      float64 `json:"host_ms"`      // until all of it is queued
}

// triedWay is a way that no worker takes; Failed says why it has no figures.
type triedWay struct {
	Way, Failed     string
	Difference      float64
	FirstS          float64 `json:"first_s"`
	Plain, Replayed *way
}

// rowAnswer is what row.py answers.
type rowAnswer struct {
	about
	Ways           map[string]way     `json:"ways"` // own, logits, and on a GPU compiled and replayed
	SlotMS         float64            `json:"slot_ms"`
	SlotFailed     string             `json:"slot_failed"`
	Equal          bool               `json:"equal"`
	TeraFLOP       float64            `json:"teraflop"`
	LogitsTeraFLOP float64            `json:"logits_teraflop"`
	MatmulTFLOPS   float64            `json:"matmul_tflops"`
	PeakBytes      uint64             `json:"peak_bytes"`
	LayersRun      int                `json:"layers_run"`
	Documents      []int              `json:"documents"`
	Seconds        map[string]float64 `json:"seconds"`
	Difference     float64            `json:"difference"`
	OwnDifference  float64            `json:"own_difference"`
	Profile        *profiled          `json:"profile"`
	Tried          []triedWay         `json:"tried"`
}

// RowBench measures a target's row of a shape, by the model's own attention and,
// where there is a GPU, as its worker makes it, compiled and replayed, and with
// all logits, beside the device's rate of matrix products; with profile also
// where the time goes, and other ways.
func RowBench(ctx context.Context, p *Python, d Devices, shape Shape, rows int, profile bool, try []string) (*Report, error) {
	r := start("row")
	r.on(d)
	var a rowAnswer
	err := p.measure(ctx, &a, p.on(d.place(0), d.threads(), compiling()...), "row.py",
		askedRow{asked{Shape: shape, Device: d.told(), Threads: d.threads(), Rows: rows, Profile: profile}, append([]string{}, try...)})
	if err != nil {
		return nil, err
	}
	shape.Rows = rows
	if err := r.row(a, shape, d.OnGPU()); err != nil {
		return nil, err
	}
	return r.done(), nil
}

// row adds the figures of an answer. The ratio of a time is to that of the row
// with all logits.
func (r *Report) row(a rowAnswer, shape Shape, cuda bool) error {
	logits, own := a.Ways["logits"], a.Ways["own"]
	if own.Following <= 0 || logits.Following <= 0 || a.MatmulTFLOPS <= 0 {
		return runner.Errorf(runner.Internal, "read result of row.py: want times above 0, got %g and %g ms, %g TFLOP/s", own.Following, logits.Following, a.MatmulTFLOPS)
	}
	r.shaped(shape, a.about)
	r.Facts["target"] = fmt.Sprintf("Qwen3 of 36 layers, %d run, documents of %s tokens", a.LayersRun, joined(a.Documents))
	r.Facts["ratio of times"] = "to the row with all logits"
	best := own
	for _, name := range []string{"own", "compiled", "replayed", "logits"} {
		w, ok := a.Ways[name]
		if !ok {
			continue
		}
		if name != "logits" {
			best = w // the later, the nearer to what a worker does
		}
		r.add("row, "+name, w.Following, "ms", w.Following/logits.Following, goalOn(cuda && shape.Workload == WorkloadW && name == "replayed", atMost(75)))
		r.add("row, "+name+", alone", w.Alone, "ms", w.Alone/logits.Following, nil)
		r.add("row, "+name+", of the host", w.Host, "ms", 0, nil)
	}
	if _, ok := a.Ways["replayed"]; ok {
		r.Facts["replayed bits"] = map[bool]string{true: "equal", false: "DIFFER"}[a.Equal]
	}
	if a.SlotFailed != "" {
		r.Facts["copy into a slot"] = a.SlotFailed
	} else {
		r.add("copy into a slot, checksum included", a.SlotMS, "ms", a.SlotMS/best.Following, nil)
	}
	r.add("matrix rate", a.MatmulTFLOPS, "TFLOP/s", 0, nil)
	r.rate("row", a.TeraFLOP, best, a.MatmulTFLOPS)
	r.rate("row, logits", a.LogitsTeraFLOP, logits, a.MatmulTFLOPS)
	r.add("peak memory of rows", float64(a.PeakBytes)/(1<<30), "GiB", 0, nil)
	r.add("packed against documents alone", a.Difference, "relative", 0, nil)
	if _, ok := a.Ways["compiled"]; ok {
		r.add("compiled against the model's own", a.OwnDifference, "relative", 0, nil)
	}
	for _, phase := range []string{"build", "first_pass", "oracle", "record", "second_pass"} {
		r.add("warm-up, "+strings.ReplaceAll(phase, "_", " "), a.Seconds[phase], "s", 0, nil)
	}
	if a.Profile != nil {
		r.profile(*a.Profile, cuda)
	}
	for _, t := range a.Tried {
		r.tried(t, logits)
	}
	return nil
}

// rate adds what a row's matrix products come to in its time, with the share of
// the device's rate.
func (r *Report) rate(name string, teraFLOP float64, w way, matmul float64) {
	got := teraFLOP / w.Following * 1e3
	r.add(name+", rate of its matrix products", got, "TFLOP/s", got/matmul, nil)
}

// tried adds a way that no worker takes, or why it has no figures.
func (r *Report) tried(t triedWay, logits way) {
	if t.Plain != nil {
		r.add("try "+t.Way, t.Plain.Following, "ms", t.Plain.Following/logits.Following, nil)
		r.add("try "+t.Way+", first", t.FirstS, "s", 0, nil)
		r.add("try "+t.Way+", difference", t.Difference, "relative", 0, nil)
	}
	if t.Replayed != nil {
		r.add("try "+t.Way+", replayed", t.Replayed.Following, "ms", t.Replayed.Following/logits.Following, nil)
	}
	if t.Failed != "" {
		r.Facts["try "+t.Way] = t.Failed
	}
}

// joined are numbers with commas.
func joined(numbers []int) string {
	text := make([]string, len(numbers))
	for i, n := range numbers {
		text[i] = fmt.Sprint(n)
	}
	return strings.Join(text, ", ")
}
