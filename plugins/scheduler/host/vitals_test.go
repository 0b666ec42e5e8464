package host

import (
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestHoldsTooMuch: a plugin that grows past a limit is ended with what it held,
// as one with too many strikes is; the question itself was answered well.
func TestHoldsTooMuch(t *testing.T) {
	for which, says := range map[string]string{"leaks": "vitals: goroutines: want at most 500, got ", "hoards": "vitals: memory: want at most 200 MiB, got "} {
		t.Run(which, func(t *testing.T) {
			o := options(t)
			o.Look, o.Backoff = 10*time.Millisecond, Backoff{time.Hour, time.Hour}
			o.Limits = Limits{MemoryBytes: 200 << 20, Tasks: 500}
			ended := make(chan State, 1)
			o.Changed = func(s State) {
				if s.State == Quarantined {
					select {
					case ended <- s:
					default:
					}
				}
			}
			p := started(t, which, o)
			if _, err := p.Arrange(t.Context(), ask()); err != nil && runner.KindOf(err) != runner.Unavailable { // it may be ended meanwhile
				t.Error(err)
			}
			if s := <-ended; s.Ends != 1 || !strings.HasPrefix(s.Last, says) {
				t.Errorf("got %+v", s)
			}
		})
	}
}

// TestVitals: what a plugin says and what the kernel says; a plugin of an older
// SDK says nothing, and is looked at all the same.
func TestVitals(t *testing.T) {
	p := started(t, "good", options(t))
	if v := p.Vitals(t.Context()); v.Goroutines < 2 || v.Threads < 2 || v.MemoryBytes < 1<<20 || v.Started != 0 {
		t.Errorf("got %+v", v)
	}
	o := options(t)
	o.Seed = 7 // as in the transcript
	elder, err := Start(t.Context(), old(t), o)
	if err != nil {
		t.Fatal(err)
	}
	defer elder.Close()
	if v := elder.Vitals(t.Context()); v.Goroutines != 0 || v.Threads < 2 || v.MemoryBytes < 1<<20 {
		t.Errorf("an older plugin: got %+v", v)
	}
	if s := elder.State(); s.Calls != 0 || s.Refused != 0 {
		t.Errorf("an older plugin: state %+v", s)
	}
}
