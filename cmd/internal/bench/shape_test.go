package bench

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func named(t *testing.T, name string) Shape {
	t.Helper()
	s, err := Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestShapes(t *testing.T) {
	w := named(t, WorkloadW)
	if err := w.Check(true); err != nil {
		t.Error(err)
	}
	if err := named(t, WorkloadTiny).Check(false); err != nil {
		t.Error(err)
	}
	if _, err := Named("V"); runner.KindOf(err) != runner.Invalid {
		t.Errorf("another name: got %v", err)
	}
	half, err := w.Scaled(4)
	want := Shape{Workload: "W/4", Tokens: 768, Anchors: 128, Block: 16, Vocabulary: 37984, Hidden: 1024, Intermediate: 3072, Layers: 5, Captured: 5,
		Heads: 8, KVHeads: 2, HeadDim: 128, DType: "bfloat16"}
	if err != nil || half != want {
		t.Errorf("a quarter: got %+v, %v", half, err)
	}
	if same, err := w.Scaled(1); err != nil || same != w {
		t.Errorf("scale 1: got %+v, %v", same, err)
	}
	if same := w.With(Sizes{}); same != w {
		t.Errorf("no sizes: got %+v", same)
	}
	one := w.With(Sizes{Tokens: 96, Hidden: 64, DType: "float32"})
	if one.Workload != "custom" || one.Tokens != 96 || one.Anchors != 512 || one.Hidden != 64 || one.Heads != 1 || one.HeadDim != 64 || one.Intermediate != 192 || one.DType != "float32" {
		t.Errorf("single sizes: got %+v", one)
	}
	if text := w.stated(); text != "N 512, block 16, S 3072, vocabulary 151936" {
		t.Errorf("stated: got %s", text)
	}
}

func TestShapesRefused(t *testing.T) {
	for says, s := range map[string]Sizes{
		"--anchors: want 1 to 63, got 64": {Anchors: 64}, // every token but the last starts a block at most
		"--tokens: want 8":                {Tokens: 4},
		"--block: want 2 to 256, got 1":   {Block: 1},
		"--captured: want 1 to 33":        {Captured: 34},
		"--dtype":                         {DType: "float16"},
		"--hidden: want an even number":   {Hidden: 200}, // neither one head nor whole heads of 128
	} {
		if err := named(t, WorkloadTiny).With(s).Check(false); err == nil || runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: got %v, want %q", s, err, says)
		}
	}
	if err := named(t, WorkloadTiny).With(Sizes{Hidden: 8}).Check(true); err == nil {
		t.Error("heads of 8 on a GPU: want an error")
	}
	for _, by := range []int{0, -1, 3} {
		if _, err := named(t, WorkloadTiny).Scaled(by); err == nil {
			t.Errorf("scale %d: want an error", by)
		}
	}
}
