package hang

import "time"

// window is the shortest time over which CPU time says anything: the kernel
// counts it in ticks of 10 ms.
const window = time.Second

// Track turns looks at one process into how long it has been quiet. The zero
// Track has seen nothing.
type Track struct {
	at    time.Time // of the look that the window began with
	cpu   time.Duration
	cores float64 // in the last whole window
	busy  time.Time
}

// Look takes a look at the time now. progress is when the worker was last known
// to get on; a process of which nothing is counted is taken to compute.
func (t Track) Look(now time.Time, v Vitals, progress time.Time) (_ Track, cores float64, quiet time.Duration) {
	switch {
	case !v.Counted:
		t = Track{cores: -1, busy: now}
	case t.at.IsZero():
		t = Track{at: now, cpu: v.CPU, cores: -1, busy: now}
	case now.Sub(t.at) >= window:
		t.cores = float64(v.CPU-t.cpu) / float64(now.Sub(t.at))
		if t.cores >= computing || t.cores < 0 { // below 0: a process of the group ended
			t.busy = now
		}
		t.at, t.cpu = now, v.CPU
	}
	since := t.busy
	if progress.After(since) {
		since = progress
	}
	return t, t.cores, now.Sub(since)
}
