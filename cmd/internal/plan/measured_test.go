package plan

import (
	"math"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// TestMeasured: configs/gpu-1.yaml beside what its workers' certificates said on
// an H200 (python/bench/LOG.md): torch.cuda.max_memory_allocated. Rows were made
// by the model's own attention then, and not replayed.
func TestMeasured(t *testing.T) {
	c, err := config.Load("../../../configs/gpu-1.yaml", []string{"target.attention=sdpa", "target.replay=false"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Make(c, c.EmbeddedModel(), Machine{Cores: 16, GPUs: []placement.GPU{{UUID: "a", Bytes: 140 << 30}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, mib := range []float64{117, 647} {
		w := p.Workers[i]
		if got := float64(w.AllocatedBytes) / (1 << 20); math.Abs(got/mib-1) > 0.1 {
			t.Errorf("%s: planned %.0f MiB, measured %.0f: %+v", w.Name, got, mib, w.Memory)
		}
	}
}

func TestApart(t *testing.T) {
	for _, c := range []struct {
		ids  []int
		want bool
	}{
		{[]int{1, 2, 3}, false}, {[]int{1, 3}, true}, {[]int{1}, true},
		{[]int{0}, false}, // what goes in is the embedding
	} {
		if got := apart(c.ids); got != c.want {
			t.Errorf("%v: got %v", c.ids, got)
		}
	}
	if got := masksOf(config.Model{LayerTypes: []string{"sliding_attention", "full_attention", "sliding_attention"}}); got != 2 || masksOf(config.Model{}) != 1 {
		t.Errorf("masks: got %d and %d", got, masksOf(config.Model{}))
	}
}
