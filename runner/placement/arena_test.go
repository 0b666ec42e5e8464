package placement

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestArenaKind(t *testing.T) {
	on := func(devices ...string) (out []Placed) { // targets on the first, drafters on the others
		for i, d := range devices {
			w := runner.Worker{Role: runner.Target}
			if i > 0 {
				w = runner.Worker{Role: runner.Drafter, Rank: runner.Rank(i - 1)}
			}
			out = append(out, Placed{w, d})
		}
		return out
	}
	none := Links{NoPeer: [][2]string{{"a", "c"}}}
	for name, c := range map[string]struct {
		want   string
		cuda   bool
		placed []Placed
		links  Links
		kind   string
		why    string // part of the reason, or of the error where kind is empty
	}{
		"a CPU":                       {"auto", false, on("cpu", "cpu"), Links{}, "memfd", ""},
		"a CPU, memfd":                {"memfd", false, on("cpu", "cpu"), Links{}, "memfd", ""},
		"a CPU, cuda_vmm":             {"cuda_vmm", false, on("cpu", "cpu"), Links{}, "", "there is no GPU"},
		"one GPU":                     {"auto", true, on("a", "a"), Links{}, "cuda_vmm", ""},
		"two GPUs":                    {"auto", true, on("a", "b"), Links{}, "cuda_vmm", ""},
		"memfd asked for":             {"memfd", true, on("a", "b"), none, "memfd", ""},
		"no peer access":              {"auto", true, on("a", "b", "c"), none, "memfd", "c, of drafter/1, has no peer access to a, of target/0"},
		"no peer access, the other":   {"auto", true, on("c", "b", "a"), none, "memfd", "a, of drafter/1, has no peer access to c, of target/0"},
		"no peer access, not needed":  {"auto", true, on("b", "a", "c"), none, "cuda_vmm", ""},
		"no peer access, insisted on": {"cuda_vmm", true, on("a", "c"), none, "", "no peer access"},
		"MIG":                         {"auto", true, on("a", "a"), Links{MIG: []string{"a"}}, "memfd", "a, of target/0, is cut into MIG"},
		"MIG elsewhere":               {"auto", true, on("a", "a"), Links{MIG: []string{"b"}}, "cuda_vmm", ""},
	} {
		kind, why, err := ArenaKind(c.want, c.cuda, c.placed, c.links)
		if c.kind == "" {
			if err == nil || runner.KindOf(err) != runner.Unavailable || runner.HintOf(err) == "" || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%s: got %v, want kind unavailable: %s", name, err, c.why)
			}
			continue
		}
		if err != nil || kind != c.kind || (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: got %s, %q, %v, want %s, %q", name, kind, why, err, c.kind, c.why)
		}
	}
}
