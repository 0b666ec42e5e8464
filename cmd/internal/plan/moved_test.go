package plan

import (
	"reflect"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// where gives the workers' devices by name.
func where(p Plan) map[runner.Worker]string {
	at := map[runner.Worker]string{}
	for _, w := range p.Workers {
		at[w.Name] = w.Device
	}
	return at
}

// TestMoved: a plan that is moved to where another was made is that one, both
// ways and with both kinds of arenas.
func TestMoved(t *testing.T) {
	gpu := func(name string) placement.GPU {
		return placement.GPU{UUID: "GPU-" + name, Index: int(name[0] - 'a'), Name: "test", Bytes: 80 << 30}
	}
	m := Machine{Cores: 8, Available: 64 << 30, GPUs: []placement.GPU{gpu("a"), gpu("b"), gpu("c")}, Links: placement.Links{NoPeer: [][2]string{{"GPU-a", "GPU-c"}}}}
	set := []string{"workers.device=cuda", "training.compute_dtype=bfloat16", "drafter.attention=sdpa", "workers.drafters=1", "workers.targets=1"}
	apart, paired := load(t, set...), load(t, append(set, "workers.colocate=true")...)
	first, err := Make(apart, apart.EmbeddedModel(), m)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Make(paired, paired.EmbeddedModel(), m)
	if err != nil || first.Arenas.Kind != runner.ArenaCUDA || second.Devices[0].Wanted == first.Devices[0].Wanted {
		t.Fatalf("%+v, %v", second, err)
	}
	for _, c := range []struct{ from, to Plan }{{first, second}, {second, first}, {first, first}} {
		got, err := c.from.Moved(apart, m, where(c.to))
		if err != nil || !reflect.DeepEqual(got, c.to) {
			t.Errorf("moved to\n%+v, want\n%+v, %v", got, c.to, err)
		}
	}
	far := map[runner.Worker]string{first.Workers[0].Name: "GPU-a", first.Workers[1].Name: "GPU-c"}
	host, err := first.Moved(apart, m, far)
	if err != nil || host.Arenas.Kind != runner.ArenaMemfd || host.HostBytes != first.HostBytes+host.Arenas.Bytes || host.MemoryBytes != first.MemoryBytes+host.Arenas.Bytes ||
		host.Workers[0].Memory.Slots != 0 || !strings.Contains(host.Arenas.Reason, "no peer access") {
		t.Errorf("without peer access: %+v, %v", host, err)
	}
	if back, err := host.Moved(apart, m, where(first)); err != nil || !reflect.DeepEqual(back, first) {
		t.Errorf("moved back\n%+v, want\n%+v, %v", back, first, err)
	}
	m.GPUs[2].Bytes = 1 << 20
	if _, err := first.Moved(apart, m, far); runner.KindOf(err) != runner.Exhausted {
		t.Errorf("to a GPU that is too small: got %v", err)
	}
	if _, err := first.Moved(apart, m, nil); runner.KindOf(err) != runner.Invalid {
		t.Errorf("to nowhere: got %v", err)
	}
	c := load(t)
	p, err := Make(c, c.EmbeddedModel(), Machine{Cores: 2, Available: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Moved(c, Machine{}, where(p)); err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("on a CPU: got %+v, %v", got, err)
	}
}
