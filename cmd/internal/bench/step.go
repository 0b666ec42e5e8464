package bench

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/kernels"
)

const gpuThreads = 4 // of a process on a GPU, on the host

// threads is what a process on these devices computes with on the host.
func (d Devices) threads() int {
	if d.OnGPU() {
		return gpuThreads
	}
	return 1
}

// compiling is what a process that compiles is given besides: as many threads
// for its compiler as the first worker of a run has.
func compiling(set ...string) []string {
	return append(set, fmt.Sprintf("TORCHINDUCTOR_COMPILE_THREADS=%d", kernels.CompileThreads(runtime.NumCPU(), 1)))
}

// asked is a question to step.py and warmup.py.
type asked struct {
	Shape     Shape  `json:"shape"`
	Device    string `json:"device"`
	Threads   int    `json:"threads"`
	Rows      int    `json:"rows,omitempty"`
	Profile   bool   `json:"profile"`
	Directory string `json:"directory,omitempty"`
	Mixed     *mixed `json:"mixed,omitempty"` // rows to measure after those of one document
}

// about is what every answer says of its process.
type about struct {
	Torch, Python, Triton string
	Parameters            uint64
}

// steps is what step.py answers.
type steps struct {
	about
	RowMS        float64            `json:"row_ms"`
	StepMS       float64            `json:"step_ms"`  // of steps that follow one another, the next row prepared beside
	AloneMS      float64            `json:"alone_ms"` // of one by itself, its row's preparation included
	TeraFLOP     float64            `json:"teraflop"`
	MatmulTFLOPS float64            `json:"matmul_tflops"`
	PeakBytes    uint64             `json:"peak_bytes"`
	Attention    string             `json:"attention"`
	Cache        string             `json:"cache"`
	Seconds      map[string]float64 `json:"seconds"`
	Kernels      []string           `json:"kernels"`
	Precision    string             `json:"precision"` // of matrix products, as certified
	Products     uint64             `json:"fp8_products"`
	Multiplied   []string           `json:"product_kernels"`
	Profile      *profiled          `json:"profile"` // of mixed rows where these are measured
	Mixed        *struct {
		StepMS float64 `json:"step_ms"` // as the other, over all of the rows in turn
	} `json:"mixed"`
}

// profiled is what the profiler saw.
type profiled struct {
	Row    []Kernel `json:"row"`
	Update []Kernel `json:"update"`
	Steps  int      `json:"steps"` // that follow one another in Spans; 0 on a CPU
	Spans  []Span   `json:"spans"`
	Gaps   []Gap    `json:"gaps"` // between Spans, the longest first
}

// StepBench measures rows and updates of a shape's drafter, as a worker makes
// them, beside the device's rate of matrix products; with profile also where
// their time goes. Mixed documents are measured beside rows of one.
func StepBench(ctx context.Context, p *Python, d Devices, shape Shape, rows int, profile bool, documents string) (*Report, error) {
	r := start("step")
	r.on(d)
	about := asked{Shape: shape, Device: d.told(), Threads: d.threads(), Rows: rows, Profile: profile}
	if documents == DocumentsMixed {
		m, err := mixedOf(shape)
		if err != nil {
			return nil, err
		}
		about.Mixed = m
	}
	var s steps
	if err := p.measure(ctx, &s, p.on(d.place(0), d.threads(), compiling()...), "step.py", about); err != nil {
		return nil, err
	}
	shape.Rows = rows
	if err := r.steps(s, shape, about.Mixed, d.OnGPU()); err != nil {
		return nil, err
	}
	return r.done(), nil
}

// shaped puts a shape and a process's versions in.
func (r *Report) shaped(shape Shape, a about) {
	shape.Parameters = a.Parameters
	r.Shape, r.Torch, r.Versions["python"] = &shape, a.Torch, a.Python
	if a.Triton != "" && r.Device != "cpu" {
		r.Versions["triton"] = a.Triton
	}
}

// steps adds the figures of an answer, those of mixed rows where it was asked
// for them.
func (r *Report) steps(s steps, shape Shape, m *mixed, cuda bool) error {
	if s.StepMS <= 0 || s.RowMS <= 0 || s.MatmulTFLOPS <= 0 {
		return runner.Errorf(runner.Internal, "read result of step.py: want times above 0, got %g and %g ms, %g TFLOP/s", s.StepMS, s.RowMS, s.MatmulTFLOPS)
	}
	r.shaped(shape, s.about)
	reference, most := cuda && shape.Workload == WorkloadW, 122.0 // what the goals are about
	if s.Precision == config.PrecisionFP8 {
		most = 100
	}
	r.Facts["precision"] = s.Precision
	if s.Products > 0 {
		r.Facts["fp8 products of the warm-up"], r.Facts["product kernels"] = fmt.Sprint(s.Products), strings.Join(s.Multiplied, " ")
	}
	r.Facts["attention"], r.Facts["kernels"], r.Facts["compile cache"] = s.Attention, strings.Join(s.Kernels, " "), s.Cache
	r.add("row and update", s.StepMS, "ms", 0, goalOn(reference, atMost(most)))
	r.add("row and update alone, prepared in its own time", s.AloneMS, "ms", 0, nil)
	r.add("row without the update", s.RowMS, "ms", 0, nil)
	r.add("context tokens a second ("+shape.stated()+")", float64(shape.Tokens)/s.StepMS*1e3, "tokens/s", 0, nil)
	r.add("blocks a second", float64(shape.Anchors)/s.StepMS*1e3, "blocks/s", 0, nil)
	if m != nil {
		if err := r.mixed(m, s, shape, cuda); err != nil {
			return err
		}
	}
	r.add("matrix rate", s.MatmulTFLOPS, "TFLOP/s", 0, nil)
	r.add("row and update, rate of its matrix products", s.TeraFLOP/s.StepMS*1e3, "TFLOP/s", s.TeraFLOP/s.StepMS*1e3/s.MatmulTFLOPS, nil)
	r.add("peak memory", float64(s.PeakBytes)/(1<<30), "GiB", 0, goalOn(reference, atMost(40)))
	for _, phase := range []string{"build", "first_pass", "oracle", "record", "second_pass"} {
		r.add("warm-up, "+strings.ReplaceAll(phase, "_", " "), s.Seconds[phase], "s", 0, nil)
	}
	if s.Profile != nil {
		r.profile(*s.Profile, cuda)
	}
	return nil
}

// profile adds where the time went: by group with its share, the longest
// kernels, and on a GPU how much of it nothing ran.
func (r *Report) profile(p profiled, cuda bool) {
	by, all := grouped(p.Row, p.Update), 0.0
	for _, ms := range by {
		all += ms
	}
	for _, g := range groups {
		r.add("kernels: "+g, by[g], "ms", by[g]/max(all, 1e-9), nil)
	}
	for _, k := range p.Row[:min(len(p.Row), 12)] {
		r.add(fmt.Sprintf("kernel: %.60s (%s, %d calls)", k.Name, groupOf(k.Name), k.Calls), k.MS, "ms", k.MS/max(all, 1e-9), nil)
	}
	if cuda && p.Steps > 0 {
		idle, whole := gaps(p.Spans)
		r.add("profiled step, first kernel to last", whole/1e3/float64(p.Steps), "ms", 0, nil)
		r.add("gaps between kernels, of the step", 100*idle/max(whole, 1e-9), "%", 0, atMost(2))
		for _, g := range p.Gaps[:min(len(p.Gaps), 12)] {
			r.add(g.stated(), g.MS/float64(p.Steps), "ms", 1e3*g.MS/max(idle, 1e-9), nil)
		}
	}
	r.Facts["ratio of kernels"] = "share of all their time"
}
