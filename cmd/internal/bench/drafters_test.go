package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestDrafters(t *testing.T) {
	w := named(t, WorkloadW)
	alone := rankAnswer{about: about{Torch: "2.11", Parameters: 7}, Steps: 5, Seconds: 2, SumBytes: 4 << 30, PeakBytes: 30 << 30, Digest: "aa", Cache: "cold"}
	quick, slow := alone, alone
	quick.Seconds, quick.KeptS, quick.Digest = 2.1, 0.3, "bb"
	slow.Seconds, slow.KeptS, slow.Digest, slow.PeakBytes, slow.Replayed = 2.5, 0.1, "bb", 31<<30, true
	r := start("drafters")
	if err := r.drafters(alone, []rankAnswer{slow, quick}, w, 4, true); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"rows a second, one": 10, "rows a second, 2": 16, "context tokens a second, 2 drafters (N 512, block 16, S 3072, vocabulary 151936)": 16 * 3072,
		"step of 4 rows, alone": 400, "step of 4 rows each, 2": 500, "drafter 0 kept": 20, "drafter 1 kept": 60, "summed a step": 4, "peak memory": 31} {
		if f := figure(t, r, name); f.Value != want {
			t.Errorf("%s: got %v, want %v", name, f.Value, want)
		}
	}
	if f := figure(t, r, "rows a second, 2"); *f.Ratio != 1.6 || *f.Met {
		t.Errorf("got %+v, want 1.6 times one, missed", f)
	}
	slow.Seconds = 2.1
	r = start("drafters")
	if err := r.drafters(alone, []rankAnswer{quick, slow}, w, 4, true); err != nil || !*figure(t, r, "rows a second, 2").Met {
		t.Errorf("1.9 times one: got %+v, %v", r.Figures, err)
	}
	r = start("drafters")
	if err := r.drafters(alone, []rankAnswer{quick, slow}, w, 4, false); err != nil || figure(t, r, "rows a second, 2").Goal != nil {
		t.Errorf("two on a CPU share it: got %+v, %v", r.Figures, err)
	}
	for name, spoil := range map[string]func(*rankAnswer){"equal parameters": func(x *rankAnswer) { x.Digest = "cc" }, "want 5 steps": func(x *rankAnswer) { x.Steps = 4 }, "more than 0s": func(x *rankAnswer) { x.Seconds = 0 }} {
		other := slow
		spoil(&other)
		if err := start("drafters").drafters(alone, []rankAnswer{quick, other}, w, 4, true); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestRanks: a rank that fails ends the one that waits for it, and is what is told.
func TestRanks(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "drafters.py"), []byte("case $1 in *'\"rank\":1'*) echo '{\"error\":{\"kind\":\"exhausted\",\"message\":\"no room\",\"hint\":\"less\"}}'; exit 1;; esac\nexec sleep 1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Python{interpreter: "/bin/sh", dir: dir}
	_, err := p.ranks(t.Context(), Devices{}, askedRank{}, Drafters)
	if runner.KindOf(err) != runner.Exhausted || runner.HintOf(err) != "less" || !strings.Contains(err.Error(), "drafter 1 of 2: no room") {
		t.Errorf("got %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.ranks(ended, Devices{}, askedRank{}, Drafters); runner.KindOf(err) != runner.Canceled {
		t.Errorf("interrupted: got %v, want kind canceled", err)
	}
}
