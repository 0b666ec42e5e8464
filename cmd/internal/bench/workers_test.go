package bench

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// figure finds one by the beginning of its name.
func figure(t *testing.T, r *Report, name string) Figure {
	t.Helper()
	for _, f := range r.Figures {
		if strings.HasPrefix(f.Name, name) {
			return f
		}
	}
	t.Fatalf("no figure %s in %+v", name, r.Figures)
	return Figure{}
}

func TestSteps(t *testing.T) {
	r, w := start("step"), named(t, WorkloadW)
	s := steps{about: about{Torch: "2.11", Python: "3.12", Parameters: 7}, RowMS: 100, StepMS: 120, TeraFLOP: 60, MatmulTFLOPS: 1000, PeakBytes: 41 << 30,
		Seconds: map[string]float64{"first_pass": 3}, Profile: &profiled{Row: []Kernel{{"nvjet", 6, 2}, {"mul", 2, 9}}, Update: []Kernel{{"adam", 2, 1}}, Steps: 2,
			Spans: []Span{{0, 90_000}, {100_000, 200_000}}, Gaps: []Gap{{"norm", "adam", 10, 1, 10}}}}
	if err := r.steps(s, w, nil, true); err != nil {
		t.Fatal(err)
	}
	if f := figure(t, r, "context tokens"); f.Value != 3072/0.12 || !strings.Contains(f.Name, "(N 512, block 16, S 3072, vocabulary 151936)") {
		t.Errorf("tokens: got %+v", f)
	}
	if f := figure(t, r, "row and update, rate"); f.Value != 500 || *f.Ratio != 0.5 {
		t.Errorf("rate: got %+v, ratio %v", f, *f.Ratio)
	}
	if f := figure(t, r, "peak memory"); f.Value != 41 || *f.Met {
		t.Errorf("peak: got %+v", f)
	}
	if f := figure(t, r, "kernels: optimiser"); f.Value != 2 || *f.Ratio != 0.2 {
		t.Errorf("optimiser: got %+v", f)
	}
	if f := figure(t, r, "profiled step"); f.Value != 100 {
		t.Errorf("a step: got %+v", f)
	}
	if f := figure(t, r, "gaps"); f.Value != 5 || *f.Met {
		t.Errorf("gaps: got %+v, want 10 of 200 ms", f)
	}
	if f := figure(t, r, "gap: norm, adam (1, at most 10.000 ms)"); f.Value != 5 || *f.Ratio != 1 {
		t.Errorf("gap: got %+v, ratio %v, want 5 ms a step and all of the idle time", f, f.Ratio)
	}
	if r.Shape.Parameters != 7 || r.Torch != "2.11" || r.Versions["python"] != "3.12" {
		t.Errorf("about: got %+v", r)
	}
	small := start("step")
	if err := small.steps(s, named(t, WorkloadTiny), nil, true); err != nil || figure(t, small, "row and update").Goal != nil || figure(t, small, "peak memory").Goal != nil {
		t.Errorf("goals are the reference's alone: %+v, %v", small.Figures, err)
	}
	if err := start("step").steps(steps{RowMS: 1, MatmulTFLOPS: 1}, w, nil, true); err == nil {
		t.Error("no time: want an error")
	}
}

func TestWarmUps(t *testing.T) {
	first := warmed{Cache: "cold", Compiles: 2, Seconds: map[string]float64{"import": 5, "build": 16, "first_pass": 12, "oracle": 5, "record": 1, "second_pass": 2}}
	second := warmed{Cache: "warm", Seconds: map[string]float64{"import": 5, "build": 16, "first_pass": 2, "oracle": 1, "record": 1, "second_pass": 2}}
	r := start("warmup")
	if err := r.warmUps(first, second, true); err != nil {
		t.Fatal(err)
	}
	if f := figure(t, r, "second process, passes"); f.Value != 6 || *f.Ratio != 0.3 || *f.Met {
		t.Errorf("got %+v, want 6 of 20 s, missed", f)
	}
	if f := figure(t, r, "first process, compiles"); f.Value != 2 || r.Facts["cache of the second"] != "warm" {
		t.Errorf("got %+v, %v", f, r.Facts)
	}
	cpu := start("warmup")
	if err := cpu.warmUps(first, second, false); err != nil || figure(t, cpu, "second process, passes").Goal != nil {
		t.Errorf("on a CPU: got %v, %v", cpu.Figures, err)
	}
	if err := start("warmup").warmUps(first, warmed{}, true); err == nil {
		t.Error("no seconds: want an error")
	}
}

func TestPairs(t *testing.T) {
	size := pairSize{HiddenBytes: 1e9, PayloadBytes: 2e9}
	seconds := map[string][]float64{"plain": {9, 1, 0.5}, "write_row": {4}, "read_row": {2.5}, "copy_in": {2}, "copy_out": {1}}
	for _, across := range []bool{true, false} {
		r := start("handoff")
		if err := r.pairs("GPU to GPU", size, seconds, across); err != nil {
			t.Fatal(err)
		}
		if f := figure(t, r, "GPU to GPU: plain"); f.Value != 1 || f.Ratio != nil {
			t.Errorf("baseline: got %+v", f)
		}
		read, pull := figure(t, r, "GPU to GPU: read row"), figure(t, r, "GPU to GPU: pull")
		if read.Value != 0.8 || *read.Ratio != 0.8 || (read.Goal != nil) != across || across && (*read.Met || !*pull.Met) {
			t.Errorf("across %v: got %+v and %+v", across, read, pull)
		}
		if f := figure(t, r, "GPU to GPU: copy into"); f.Goal != nil {
			t.Errorf("copy in: got %+v, want no goal", f)
		}
	}
	delete(seconds, "copy_out")
	if err := start("handoff").pairs("x", size, seconds, true); err == nil {
		t.Error("a figure that is missing: want an error")
	}
}

func TestRowOf(t *testing.T) {
	if got := RowOf(120, true); got != (Row{3072, 5 * 4096, "bfloat16"}) { // the reference's
		t.Errorf("got %+v", got)
	}
	if got := RowOf(1, false); got != (Row{51, 5 * 1024, "float32"}) {
		t.Errorf("got %+v", got)
	}
}

func TestRefusal(t *testing.T) {
	err := refusal([]byte("noise\n" + `{"error": {"kind": "not_found", "message": "use device cuda: want a GPU", "hint": "a driver"}}` + "\n"))
	if runner.KindOf(err) != runner.NotFound || err.Error() != "use device cuda: want a GPU" || runner.HintOf(err) != "a driver" {
		t.Errorf("got %v", err)
	}
	for _, out := range []string{"", "Traceback", `{"bench": 1}`, `[]`} {
		if err := refusal([]byte(out)); err != nil {
			t.Errorf("%q: got %v", out, err)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "") // whatever this machine has
	for _, c := range []struct {
		want string
		gpus int
		kind runner.Kind
		ok   bool
	}{
		{"cpu", 0, 0, true}, {"auto", 0, 0, true}, {"cuda", 0, runner.Exhausted, false}, {"auto", 1, runner.Exhausted, false},
		{"cpu", 1, runner.Invalid, false}, {"gpu", 0, runner.Invalid, false},
	} {
		d, err := Choose(t.Context(), c.want, c.gpus)
		if (err == nil) != c.ok || err != nil && runner.KindOf(err) != c.kind || d.OnGPU() {
			t.Errorf("%s, %d: got %+v, %v", c.want, c.gpus, d, err)
		}
	}
}

func TestDevices(t *testing.T) {
	two := Devices{GPUs: []placement.GPU{{UUID: "GPU-a", Name: "H200"}, {UUID: "GPU-b", Name: "H100"}}}
	if two.place(0) != "GPU-a" || two.place(1) != "GPU-b" || two.place(2) != "GPU-b" || two.told() != "cuda:0" || two.String() != "H200 and H100" || two.threads() != gpuThreads {
		t.Errorf("got %+v", two)
	}
	if cpu := (Devices{}); cpu.place(1) != "cpu" || cpu.told() != "cpu" || cpu.String() != "cpu" || cpu.threads() != 1 {
		t.Error("a CPU is none of that")
	}
}
