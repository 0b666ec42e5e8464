package journal

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// The count of what is settled stands on its own: the planner that the plans
// were checked against is not asked.
func TestSettledOnce(t *testing.T) {
	s := settled{draws: 2, epochs: map[uint32][]uint8{}}
	row := func(epoch uint32, sample runner.Sample, draw uint32) runner.RowPlan {
		return runner.RowPlan{Row: 1, Epoch: epoch, Pieces: []runner.Piece{{Sample: sample, Draw: draw}}}
	}
	for _, r := range []runner.RowPlan{row(1, 0, 0), row(1, 0, 1), row(2, 0, 0), row(1, 2, 1)} {
		if err := s.row(r, 3); err != nil {
			t.Error(err)
		}
	}
	for want, r := range map[string]runner.RowPlan{"settled twice": row(1, 0, 1), "sample 3 draw 0 is not": row(1, 3, 0), "sample 0 draw 2 is not": row(1, 0, 2)} {
		if err := s.row(r, 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestEpochsSettledWhole(t *testing.T) {
	h := whole(t)
	dir := write(t, h.out, rollBytes)
	v := &verifier{facts: h.facts, planner: newHistory(t).planner, plans: h.plans, committed: h.at}
	s, err := Scan(dir, func(Entry) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	// Without the skips, the first epoch lacks the samples of a row.
	if _, err := v.report(s); err == nil || !strings.Contains(err.Error(), "epoch 1: want every sample settled before epoch") {
		t.Errorf("got %v", err)
	}
}

func TestVerifyWantsRestoreAfterResume(t *testing.T) {
	h := newHistory(t)
	h.start()
	h.exclude()
	h.plan()
	h.start()
	h.commit()
	if _, err := Verify(write(t, h.out, rollBytes), h.facts); err == nil || !strings.Contains(err.Error(), "want a restore first") {
		t.Errorf("got %v", err)
	}
}
