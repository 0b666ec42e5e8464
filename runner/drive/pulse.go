package drive

import (
	"fmt"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// The supervisor's own clock is looked at so often; a look that comes so late
// says that the process did not run meanwhile.
const (
	pulseEvery     = time.Second
	suspendedAfter = 5 * time.Second
)

// pulse notices that this process was suspended. Whoever acts on the time looks
// at it first, since after a suspension any goroutine may be the first to run.
type pulse struct {
	mu      sync.Mutex // guards below
	beat    time.Time
	gone    time.Duration // not told of yet
	resumed time.Time     // zero: never
}

func newPulse(now time.Time) *pulse { return &pulse{beat: now} }

// look tells the clock.
func (p *pulse) look(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gap := now.Sub(p.beat); gap > suspendedAfter {
		p.gone, p.resumed = p.gone+gap, now
	}
	if now.After(p.beat) {
		p.beat = now
	}
}

// take gives how long the process was suspended, once.
func (p *pulse) take() (gone time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone, p.gone = p.gone, 0
	return gone
}

// fresh reports whether the process was suspended less than d ago.
func (p *pulse) fresh(now time.Time, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.resumed.IsZero() && now.Sub(p.resumed) <= d
}

// keepPulse looks at the clock until the loop's end.
func (l *Loop) keepPulse() {
	every := time.NewTicker(pulseEvery)
	defer every.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-every.C:
			l.pulse.look(time.Now())
		}
	}
}

// suspension is the event that tells of it.
func suspension(now time.Time, gone time.Duration) runner.Event {
	return runner.Event{At: now, Level: runner.Warn, Name: "supervisor suspended",
		Message: fmt.Sprintf("this process did not run for %s: it was stopped, or the machine was; what workers owe is due anew from now", gone.Round(time.Millisecond)),
		Figures: map[string]float64{"seconds": gone.Seconds()}}
}
