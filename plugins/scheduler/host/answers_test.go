package host

import (
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// TestJudgeArrange: what an order may not do, also for samples that differ in
// their high bits alone.
func TestJudgeArrange(t *testing.T) {
	const far = 1 << 16
	q := scheduler.ArrangeRequest{Count: 3}
	for _, s := range []runner.Sample{5, 6, 6, 64, 5 + far, 9, 40_000} {
		q.Pool = append(q.Pool, scheduler.Candidate{Sample: s})
	}
	for _, c := range []struct {
		got  []runner.Sample
		says string
	}{
		{[]runner.Sample{9, 6, 6}, ""},
		{[]runner.Sample{5 + far, 5, 40_000}, ""},
		{[]runner.Sample{9, 6}, "want 3 samples, got 2"},
		{[]runner.Sample{6, 6, 6}, "place 2: sample 6 stands there again"},
		{[]runner.Sample{9, 5, 9}, "place 2: sample 9 stands there again"},
		{[]runner.Sample{9, 5, 7}, "place 2: sample 7 is not in the pool"},
		{[]runner.Sample{9, 6 + far, 5}, "place 1: sample 65542 is not in the pool"},
		{[]runner.Sample{9, 5 + 2*far, 5}, "place 1: sample 131077 is not in the pool"},
		{[]runner.Sample{1<<32 - 1, 5, 6}, "place 0: sample 4294967295 is not in the pool"},
	} {
		err := JudgeArrange(q, c.got)
		if (err == nil) != (c.says == "") || err != nil && err.Error() != c.says {
			t.Errorf("%v: got %v, want %q", c.got, err, c.says)
		}
	}
	q.Pool = q.Pool[:2]
	if err := JudgeArrange(q, []runner.Sample{6, 5}); err != nil {
		t.Errorf("all of a pool that is smaller than what was asked for: %v", err)
	}
	if err := JudgeArrange(q, nil); err == nil || !strings.Contains(err.Error(), "want 2 samples, got 0") {
		t.Errorf("got %v", err)
	}
}
