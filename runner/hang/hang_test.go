package hang

import (
	"strings"
	"testing"
	"time"
)

var limits = Limits{Heartbeat: 10 * time.Second, WarmUp: 2 * time.Minute, Order: time.Minute}

func TestJudge(t *testing.T) {
	beat := func(d time.Duration, s State) Vitals { return Vitals{Heartbeat: d, Counted: true, State: s} }
	const m = time.Minute
	for _, c := range []struct {
		name string
		e    Evidence
		want Verdict
		why  string
	}{
		{"nothing asked of it", Evidence{Vitals: beat(0, Live), Quiet: time.Hour, Progress: time.Hour}, Busy, ""},
		{"a compile of 3 minutes that holds the lock", Evidence{Phase: WarmUp, Vitals: beat(0, Live), Progress: 3 * m, Cores: 1}, Busy, ""},
		{"a compile whose children compute", Evidence{Phase: WarmUp, Vitals: beat(0, Live), Progress: 3 * m, Cores: 0.11}, Busy, ""},
		{"a long order that computes", Evidence{Phase: Order, Vitals: beat(0, Live), Progress: 4 * m, Cores: 0.9}, Busy, ""},
		{"quiet for less than half the limit", Evidence{Phase: Order, Vitals: beat(0, Live), Quiet: m/2 - 1}, Busy, ""},
		{"quiet for half the limit", Evidence{Phase: Order, What: "train", Vitals: beat(0, Live), Quiet: m / 2, Progress: m / 2}, Suspect, "no progress in train for 30s; its processes want 0.00 cores; it answers pings"},
		{"deadlocked", Evidence{Phase: Order, What: "train", Vitals: beat(0, Live), Quiet: m, Progress: m}, Hung, "no progress in train for 1m0s"},
		{"deadlocked, with threads that answer pings", Evidence{Phase: Order, Vitals: beat(0, Live), Quiet: m, Cores: 0.02}, Hung, "0.02 cores"},
		{"deadlocked in warm-up", Evidence{Phase: WarmUp, Vitals: beat(0, Live), Quiet: 2 * m}, Hung, ""},
		{"not yet, in warm-up", Evidence{Phase: WarmUp, Vitals: beat(0, Live), Quiet: 2*m - 1}, Suspect, ""},
		{"waits for a peer", Evidence{Phase: Order, Vitals: beat(0, Live), Quiet: time.Hour, Peers: true}, Suspect, "another worker"},
		{"a first order", Evidence{Phase: Order, Vitals: beat(0, Live), Quiet: time.Hour, First: true}, Suspect, "deadline"},
		{"a slow disk", Evidence{Phase: Order, Vitals: beat(0, Blocked), Quiet: time.Hour}, Suspect, "blocked in the kernel"},
		{"stopped a moment ago", Evidence{Phase: Idle, Vitals: beat(9*time.Second, Stopped)}, Suspect, "stopped"},
		{"stopped", Evidence{Phase: Idle, Vitals: beat(11*time.Second, Stopped), Cores: -1}, Hung, "no sign of life for 11s; its process is stopped"},
		{"stopped while it was computing", Evidence{Phase: Order, Vitals: beat(11*time.Second, Stopped), Cores: 1}, Hung, "stopped"},
		{"in a debugger", Evidence{Phase: Order, Vitals: beat(time.Hour, Traced)}, Suspect, "debugger"},
		{"stuck in a driver", Evidence{Phase: Order, Vitals: beat(11*time.Second, Blocked)}, Hung, "blocked in the kernel"},
		{"starved, but it computes", Evidence{Phase: Order, Vitals: beat(30*time.Second, Live), Cores: 1}, Suspect, "1.00 cores"},
		{"silent for too long although it computes", Evidence{Phase: Order, Vitals: beat(31*time.Second, Live), Cores: 1}, Hung, ""},
		{"silent and idle", Evidence{Phase: Order, Vitals: beat(11*time.Second, Live)}, Hung, "0.00 cores"},
		{"dead", Evidence{Phase: Order, Vitals: beat(time.Hour, Zombie)}, Suspect, "dead"},
	} {
		got, reasons := Judge(c.e, limits)
		if why := strings.Join(reasons, "; "); got != c.want || !strings.Contains(why, c.why) || (got == Busy) != (why == "") {
			t.Errorf("%s: got %v, %q, want %v, %q", c.name, got, why, c.want, c.why)
		}
	}
}

// TestLook: quiet begins with the last progress or computing, whichever is later.
func TestLook(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	type look struct {
		s     float64 // after t0
		cpu   float64 // seconds so far; negative: not counted
		quiet float64
		cores float64
	}
	for name, c := range map[string]struct {
		progress float64
		looks    []look
	}{
		"computes all the time": {0, []look{{10, 5, 0, -1}, {12, 7, 0, 1}, {14, 9, 0, 1}}},
		"stops computing":       {0, []look{{10, 5, 0, -1}, {12, 7, 0, 1}, {14, 7, 2, 0}, {16, 7.1, 4, 0.05}}},
		"never computes":        {0, []look{{10, 5, 0, -1}, {12, 5, 2, 0}, {72, 5, 62, 0}}},
		"gets on without":       {10, []look{{8, 5, -2, -1}, {10.5, 5, 0.5, 0}, {72, 5, 62, 0}}},
		"a child ended":         {0, []look{{10, 5, 0, -1}, {12, 3, 0, -1}, {14, 3, 2, 0}}},
		"looked at too soon":    {0, []look{{10, 5, 0, -1}, {12, 5, 2, 0}, {12.5, 6, 2.5, 0}, {13, 6, 0, 1}}},
		"not counted":           {0, []look{{10, 5, 0, -1}, {12, -1, 0, -1}, {14, 5, 0, -1}, {16, 5, 2, 0}}},
	} {
		var tr Track
		for _, l := range c.looks {
			v := Vitals{CPU: time.Duration(l.cpu * float64(time.Second)), Counted: l.cpu >= 0}
			var cores float64
			var quiet time.Duration
			tr, cores, quiet = tr.Look(at(l.s), v, at(c.progress))
			if d := cores - l.cores; quiet.Seconds() != l.quiet || d > 1e-9 || d < -1e-9 {
				t.Errorf("%s, after %gs: quiet %v at %g cores, want %gs at %g", name, l.s, quiet, cores, l.quiet, l.cores)
			}
		}
	}
}
