package plan

import (
	"os"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// TestShippedMachines: each can be read, and a configuration placed on it.
func TestShippedMachines(t *testing.T) {
	for file, nodes := range map[string]int{"h200-8.json": 1, "h200-64x8.json": 64} {
		text, err := os.ReadFile("../../../configs/machines/" + file)
		if err != nil {
			t.Fatal(err)
		}
		d, err := ParseMachine(text)
		if err != nil || d.Nodes != nodes {
			t.Fatalf("%s: got %+v, %v", file, d, err)
		}
		m, err := d.For(large(t))
		if err != nil || len(m.GPUs) != 8 || m.Cores != 128 {
			t.Errorf("%s: got %+v, %v", file, m, err)
		}
		if m, err = d.For(large(t, "workers.devices=[3, 1]")); err != nil || len(m.GPUs) != 2 || m.GPUs[0].Index != 3 {
			t.Errorf("%s: named GPUs: got %+v, %v", file, m.GPUs, err)
		}
		if m, err = d.For(load(t)); err != nil || len(m.GPUs) != 0 {
			t.Errorf("%s: on a CPU: got %+v, %v", file, m.GPUs, err)
		}
	}
}

func TestMachineFile(t *testing.T) {
	const good = `{"format": 1, "name": "two", "nodes": 1, "cores": 4, "memory_bytes": 1073741824, "gpus": [{"name": "A", "memory_bytes": 2097152, "count": 1}, {"name": "B", "memory_bytes": 4194304, "count": 1}], "no_peer": [[0, 1]]}`
	d, err := ParseMachine([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.For(large(t))
	if err != nil || m.GPUs[1].Name != "B" || m.GPUs[1].Bytes != 4<<20 || m.Links.Peer(m.GPUs[0].UUID, m.GPUs[1].UUID) || !(placement.Links{}).Peer("a", "b") {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, c := range [][3]string{
		{`"format": 1`, `"format": 2`, "format: want 1, got 2"},
		{`"nodes": 1`, `"nodes": 0`, "want 1 to 4096 nodes"},
		{`"cores": 4`, `"cores": 0`, "1 to 65536 cores"},
		{`"count": 1}]`, `"count": 300}]`, "gpus[1]: want a name"},
		{`"name": "A"`, `"name": ""`, "gpus[0]: want a name"},
		{`[[0, 1]]`, `[[0, 2]]`, "no_peer[0]: want two of 2 GPUs, got 0 and 2"},
		{`"cores"`, `"core"`, "unknown field"},
	} {
		text := strings.Replace(good, c[0], c[1], 1)
		if _, err := ParseMachine([]byte(text)); runner.KindOf(err) != runner.Invalid || err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%s: want %q, got %v", c[1], c[2], err)
		}
	}
}
