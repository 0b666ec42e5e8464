package bench

import (
	"os"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func TestFinished(t *testing.T) {
	s := admin.Summary{Name: "a", StartedAt: time.Now(), Rows: 200, SupervisorCPUS: 0.3, SupervisorPeakBytes: 49 << 20, Stages: []admin.Stage{
		{Name: "environment", State: admin.StageReused, Seconds: 0.5}, {Name: "target", State: admin.StageReused},
		{Name: "warm_up", State: admin.StageDone, Seconds: 10}, {Name: "train", State: admin.StageDone, Seconds: 99}}}
	first := s.StartedAt.Add(10500 * time.Millisecond)
	r, err := Finished(s, first)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		value float64
		met   bool
	}{{1.5, false}, {49, false}} {
		if f := r.Figures[i]; f.Value != want.value || *f.Met != want.met {
			t.Errorf("%s: got %v, met %v, want %+v", f.Name, f.Value, *f.Met, want)
		}
	}
	if f := r.Figures[4]; f.Value != 10.5 || f.Goal == nil {
		t.Errorf("got %v with goal %v, want 10.5 with one", f.Value, f.Goal)
	}
	s.SupervisorCPU = admin.SupervisorCPU{Parts: map[string]float64{"train": 0.12}, Rows: 150, RowMS: share(0.8)}
	if r, err = Finished(s, first); err != nil || r.Figures[0].Value != 0.8 || !*r.Figures[0].Met || r.Figures[1].Value != 1.5 || r.Figures[1].Goal != nil {
		t.Errorf("got %+v, %v, want the goal on what a row of training costs", r.Figures, err)
	}
	s.SupervisorCPU = admin.SupervisorCPU{} // as an earlier version wrote it
	s.Stages[1].State = admin.StageDone
	if r, err = Finished(s, first); err != nil || r.Figures[4].Goal != nil {
		t.Errorf("got %v, %v, want no goal for a run that built its target", r.Figures[4].Goal, err)
	}
	s.Lineage = 2
	if r, err = Finished(s, first); err != nil || r.Figures[0].Goal != nil || r.Facts["lineage"] == "" {
		t.Errorf("got goal %v, %v, want none for a run whose rows are not of one process", r.Figures[0].Goal, err)
	}
	s.Rows = 0
	if _, err := Finished(s, first); err == nil || runner.KindOf(err) != runner.Invalid {
		t.Errorf("without rows: got %v, want kind invalid", err)
	}
}

func TestTicksOf(t *testing.T) {
	got, err := ticksOf("7 (a) b (c)) S 1 7 7 0 -1 4194304 1 2 3 4 150 27 8 9 20 0 5 0 100 1 1")
	if err != nil || got != 177 {
		t.Errorf("got %d, %v, want 177", got, err)
	}
	for _, bad := range []string{"", "7 (a) S 1 2", "7 (a) S 1 7 7 0 -1 4194304 1 2 3 4 x 27"} {
		if got, err := ticksOf(bad); err == nil {
			t.Errorf("%q: got %d, want an error", bad, got)
		}
	}
}

func TestPeakOf(t *testing.T) {
	got, err := peakOf("Name:\tx\nVmPeak:\t  999 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 10 kB\n")
	if err != nil || got != 2<<20 {
		t.Errorf("got %d, %v, want 2 MiB", got, err)
	}
	if _, err := peakOf("Name:\tx\n"); err == nil {
		t.Error("without VmHWM: want an error")
	}
}

func TestReadsThisProcess(t *testing.T) {
	if got, err := peakBytes(os.Getpid()); err != nil || got < mib {
		t.Errorf("peak: got %d, %v", got, err)
	}
	if _, err := cpuTicks(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, err := cpuTicks(-1); err == nil {
		t.Error("no such process: want an error")
	}
}

func TestTakeTurns(t *testing.T) {
	var sequence []byte
	orders, packets, err := takeTurns(25, func() (time.Duration, error) { sequence = append(sequence, 'o'); return 1, nil },
		func() (time.Duration, error) { sequence = append(sequence, 'p'); return 2, nil })
	if err != nil || len(orders) != 25 || len(packets) != 25 || orders[24] != 1 || packets[0] != 2 {
		t.Fatalf("got %d and %d, %v", len(orders), len(packets), err)
	}
	if len(sequence) != 2*(25+unmeasured) {
		t.Errorf("got %d in all, want %d", len(sequence), 2*(25+unmeasured))
	}
	if got := string(sequence[2*unmeasured : 2*unmeasured+9]); got != "ooppooopp" {
		t.Errorf("got turns %s", got)
	}
	failed := runner.Errorf(runner.Internal, "x")
	if _, _, err := takeTurns(1, func() (time.Duration, error) { return 0, failed }, nil); err != failed {
		t.Errorf("got %v, want the first failure", err)
	}
}

func TestHandoffs(t *testing.T) {
	h := handoffs{Bytes: map[string]uint64{}, Seconds: map[string][]float64{}, CPUSeconds: map[string][]float64{}}
	for _, m := range measures {
		h.Bytes[m.name], h.Seconds[m.name], h.CPUSeconds[m.name] = 1e9, []float64{9, 0.5, 0.1}, []float64{0.25}
	}
	h.Seconds["copy_out"] = []float64{1, 1, 1}
	r := start("handoff")
	if err := r.handoffs(h); err != nil {
		t.Fatal(err)
	}
	if f := r.Figures[1]; f.Value != 2 || *f.Ratio != 1 || !*f.Met {
		t.Errorf("copy in: got %+v, want the median's 2 GB/s", f)
	}
	if f := r.Figures[2]; *f.Ratio != 0.5 || *f.Met {
		t.Errorf("copy out: got %+v, want ratio 0.5, missed", f)
	}
	if f := r.Figures[len(measures)+1]; f.Value != 4 || f.Goal != nil || f.Name != "copy into the slot, CPU time" {
		t.Errorf("copy in by CPU time: got %+v", f)
	}
	delete(h.CPUSeconds, "read_row")
	if err := start("handoff").handoffs(h); err == nil {
		t.Error("a figure that is missing: want an error")
	}
}
