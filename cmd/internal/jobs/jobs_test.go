package jobs

import (
	"testing"

	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

func TestAnswer(t *testing.T) {
	var seen []uint64
	a := answer{progress: func(p *jobv1.Progress) { seen = append(seen, p.Done) }}
	for _, line := range []string{`{"progress":{"stage":"x","done":"3","total":"9"}}`, `{"result":{"figures":{"acceptance":5.5},"warnings":["w"]}}`} {
		a.line([]byte(line))
	}
	if len(seen) != 1 || seen[0] != 3 || a.failed != nil || a.result.Figures["acceptance"] != 5.5 {
		t.Errorf("got %v, %+v", seen, a)
	}
	a.line([]byte(`{"error":{"kind":"exhausted","message":"no room","hint":"make room"}}`))
	if runner.KindOf(a.failed) != runner.Exhausted || a.failed.Error() != "no room" || runner.HintOf(a.failed) != "make room" {
		t.Errorf("got %v", a.failed)
	}
	for name, line := range map[string]string{"not JSON": "hello", "unknown field": `{"news":{}}`, "unknown kind": `{"error":{"kind":"odd","message":"m"}}`} {
		b := answer{}
		if b.line([]byte(line)); runner.KindOf(b.failed) != runner.Internal {
			t.Errorf("%s: got %v", name, b.failed)
		}
	}
	first := answer{}
	first.line([]byte("one"))
	was := first.failed
	first.line([]byte("two"))
	if first.failed != was {
		t.Errorf("want the first failure, got %v", first.failed)
	}
}
