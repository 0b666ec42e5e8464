// Package life is the state machine of one worker over all its lives: from
// absent to ready, through loss and backoff to the next generation, or to
// failed once its restart budget is spent or its device is barred. It is pure: time comes with each
// event.
package life

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// State is where a worker's life stands.
type State uint8

// The states, in the order of a good life; the last five end or interrupt it.
const (
	Absent    State = iota // never started
	Launching              // process, handshake, configuration
	Waiting                // in the gate's queue
	Warming                // holds the gate
	Certified              // certificate valid; memory and state are being given
	Ready                  // takes any order
	Draining               // finishes and ends
	Lost                   // lane closed or killed; its process may still run
	Backoff                // reaped; starts again at Until
	Gone                   // drained and reaped
	Failed                 // reaped, and never started again
)

var stateNames = [...]string{"absent", "launching", "waiting", "warming", "certified", "ready", "draining", "lost", "backoff", "gone", "failed"}

// String gives the name shown in status.
func (s State) String() string { return stateNames[s] }

// Budget bounds how often a worker is started again.
type Budget struct {
	Deaths int           // that are borne; one more and the worker has failed
	Decay  time.Duration // one death is forgiven for so much time without one; 0: never
	Base   time.Duration // wait before the first restart; doubles with each death
	Cap    time.Duration // longest wait; 0: no limit
	Jitter float64       // share of a wait, 0 to 1, by which a draw may shorten it
	Seed   uint64        // of the draws: the worker's own, so that workers differ
}

// Life is a worker's present life and what is remembered of earlier ones.
type Life struct {
	State      State
	Generation runner.Generation
	Since      time.Time // of State
	Until      time.Time // end of Backoff
	Strikes    int       // deaths that count
	Struck     time.Time // the last of them
}

// Event is what happens to a life.
type Event uint8

// The events.
const (
	Start    Event = iota // Absent: start it; Backoff: the wait is over
	Launched              // configured
	Admitted              // the gate lets it in
	Prove                 // its certificate was checked
	Prepared              // memory and state are there
	Drain                 // let it end
	Lose                  // its lane closed, or it is being killed
	Reap                  // reaped, and nothing of it runs
	Bar                   // its device is not used again
)

// Alive reports whether the life's lane may be used: it is certified and not
// known to be lost.
func (s State) Alive() bool { return s == Certified || s == Ready || s == Draining }

// Running reports whether a process of it may exist.
func (s State) Running() bool { return s >= Launching && s <= Lost }

// Over reports whether nothing comes after this state.
func (s State) Over() bool { return s == Gone || s == Failed }

// Next gives the life after an event, and whether the event fits its state. An
// event that does not fit changes nothing: it was overtaken by another.
func Next(l Life, e Event, now time.Time, b Budget) (Life, bool) {
	to, ok := l.State, true
	switch {
	case e == Start && (l.State == Absent || l.State == Backoff):
		to = Launching
		l.Generation++
	case e == Launched && l.State == Launching:
		to = Waiting
	case e == Admitted && l.State == Waiting:
		to = Warming
	case e == Prove && l.State == Warming:
		to = Certified
	case e == Prepared && l.State == Certified:
		to = Ready
	case e == Drain && (l.State == Certified || l.State == Ready):
		to = Draining
	case e == Drain && (l.State == Absent || l.State == Backoff):
		to = Gone // nothing runs: there is nothing to wait for
	case e == Lose && l.State.Running() && l.State != Lost:
		to = Lost
	case e == Reap && l.State == Draining:
		to = Gone
	case e == Reap && l.State.Running():
		return strike(l, now, b), true
	case e == Bar && l.State == Backoff:
		to = Failed
	default:
		ok = false
	}
	if ok {
		l.State, l.Since = to, now
	}
	return l, ok
}

// strike counts a death and decides between backoff and failed.
func strike(l Life, now time.Time, b Budget) Life {
	if b.Decay > 0 && l.Strikes > 0 {
		l.Strikes -= min(l.Strikes, int(now.Sub(l.Struck)/b.Decay))
	}
	l.Strikes++
	l.Struck, l.Since = now, now
	if l.Strikes > b.Deaths {
		l.State = Failed
		return l
	}
	l.State, l.Until = Backoff, now.Add(b.wait(l.Strikes, l.Generation))
	return l
}

// wait doubles with each death that counts, up to the cap; the draw of the
// generation that died shortens it, so that what died together does not start
// again together.
func (b Budget) wait(strikes int, died runner.Generation) time.Duration {
	w := b.Base
	for i := 1; i < strikes && (b.Cap == 0 || w < b.Cap) && w < time.Hour; i++ {
		w *= 2
	}
	if b.Cap > 0 {
		w = min(w, b.Cap)
	}
	return w - time.Duration(b.Jitter*b.draw(died)*float64(w))
}

// draw gives a number from 0 to below 1 that is the same for the same seed and
// generation: one step of splitmix64.
func (b Budget) draw(died runner.Generation) float64 {
	z := b.Seed + (uint64(died)+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}
