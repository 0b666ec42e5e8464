package bench

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestRow(t *testing.T) {
	a := rowAnswer{about: about{Torch: "2.11", Parameters: 9}, SlotMS: 0.7, Equal: true, TeraFLOP: 42, LogitsTeraFLOP: 49, MatmulTFLOPS: 700, LayersRun: 34, Documents: []int{2, 1},
		OwnDifference: 0.05,
		Ways:          map[string]way{"own": {80, 81, 9}, "compiled": {72, 73, 9}, "replayed": {70, 71, 1}, "logits": {100, 101, 8}},
		Profile:       &profiled{Row: []Kernel{{"nvjet", 60, 2}, {"fmha_cutlassF", 20, 9}}, Steps: 2, Spans: []Span{{0, 99_000}, {100_000, 200_000}}},
		Tried: []triedWay{{Way: "varlen", Difference: 0.01, FirstS: 2, Plain: &way{66, 66, 8}, Replayed: &way{60, 60, 1}},
			{Way: "flex", Failed: "RuntimeError: no kernel"}}}
	r := start("row")
	if err := r.row(a, named(t, WorkloadW), true); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]float64{
		"row, own": {80, 0.8}, "row, compiled": {72, 0.72}, "compiled against the model's own": {0.05, 0}, "row, replayed": {70, 0.7}, "row, replayed, alone": {71, 0.71}, "row, own, of the host": {9, 0}, "row, logits": {100, 1},
		"copy into a slot, checksum included": {0.7, 0.01}, "row, rate of its matrix products": {600, 600. / 700}, "row, logits, rate of its matrix products": {490, 0.7},
		"try varlen": {66, 0.66}, "try varlen, replayed": {60, 0.6}, "kernels: attention": {20, 0.25},
	} {
		f := exactly(t, r, name)
		if f.Value != want[0] || want[1] != 0 && (f.Ratio == nil || *f.Ratio != want[1]) {
			t.Errorf("%s: want %v, got %+v", name, want, f)
		}
	}
	if f := exactly(t, r, "row, replayed"); f.Met == nil || !*f.Met {
		t.Errorf("goal of a replayed row: want met at 70 ms, got %+v", f)
	}
	if r.Facts["try flex"] != "RuntimeError: no kernel" || r.Facts["replayed bits"] != "equal" || !strings.Contains(r.Facts["target"], "34 run, documents of 2, 1 tokens") {
		t.Errorf("facts: got %v", r.Facts)
	}

	delete(a.Ways, "replayed")
	delete(a.Ways, "compiled")
	a.SlotFailed = "no such memory"
	cpu := start("row")
	if err := cpu.row(a, named(t, WorkloadTiny), false); err != nil || exactly(t, cpu, "row, own").Goal != nil {
		t.Errorf("on a CPU: got %+v, %v", cpu.Figures, err)
	}
	if _, ok := cpu.Facts["replayed bits"]; ok || cpu.Facts["copy into a slot"] != "no such memory" {
		t.Errorf("facts on a CPU: got %v", cpu.Facts)
	}
	if f := exactly(t, cpu, "row, rate of its matrix products"); f.Value != 525 {
		t.Errorf("without replays the rate is that of the model's own row: got %+v", f)
	}
	delete(a.Ways, "logits")
	if err := start("row").row(a, named(t, WorkloadW), true); err == nil {
		t.Error("no row with all logits: want an error")
	}
}

// exactly finds a figure by its whole name.
func exactly(t *testing.T, r *Report, name string) Figure {
	t.Helper()
	for _, f := range r.Figures {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no figure %q in %+v", name, r.Figures)
	return Figure{}
}

func TestCheckWays(t *testing.T) {
	for _, ways := range [][]string{nil, {"varlen"}, {"norms"}, {"flex+blocks", "causal"}} {
		if err := CheckWays(ways); err != nil {
			t.Errorf("%v: got %v", ways, err)
		}
	}
	for _, way := range []string{"", "varlen+", "flash", "varlen+flex", "norms+blocks", "varlen+norms+blocks"} {
		if err := CheckWays([]string{way}); runner.KindOf(err) != runner.Invalid {
			t.Errorf("%q: want invalid, got %v", way, err)
		}
	}
}
