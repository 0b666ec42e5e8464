// Package hang judges by evidence whether a worker that has not answered yet is
// busy or hangs. It is pure: samples and times are given to it.
//
// No single sign tells. A compiler holds the interpreter lock for minutes and
// computes; a worker that is deadlocked answers pings, since gRPC's core does
// so without Python; one that waits for a peer in a collective does nothing and
// is well. Deadlines stand behind all of it: what is not judged here ends there.
package hang

import (
	"fmt"
	"time"
)

// Phase is what a worker is asked for now.
type Phase uint8

// The phases.
const (
	Idle   Phase = iota // nothing
	WarmUp              // its certificate
	Order               // the answer to an order
)

// State is what the kernel says of a process.
type State uint8

// The states that tell something.
const (
	Live    State = iota // runs, or waits for something that may come
	Stopped              // by a signal
	Traced               // a debugger holds it
	Blocked              // waits in the kernel, for a disk or a driver
	Zombie               // dead, not reaped yet
)

var stateNames = [...]string{"live", "stopped", "held by a debugger", "blocked in the kernel", "dead and not reaped"}

// String gives the state's words.
func (s State) String() string { return stateNames[s] }

// Vitals are one look at a worker's process.
type Vitals struct {
	Heartbeat time.Duration // age of its newest answer to a ping
	CPU       time.Duration // that its processes took so far, and a share of what they had to wait for
	Counted   bool          // CPU was looked at
	State     State         // of the group's leader
}

// Evidence is all that is known of a worker at one moment.
type Evidence struct {
	Vitals
	Phase    Phase
	What     string        // it is asked for: an order's name
	Progress time.Duration // since its last reply, order or phase of warm-up
	Quiet    time.Duration // since that, and since its group last computed
	Cores    float64       // that its processes wanted in the last window; negative: not known
	Peers    bool          // what it is asked for may wait for another worker
	First    bool          // it is among the first orders of its life
}

// Limits say how much is borne.
type Limits struct {
	Heartbeat time.Duration // the oldest answer to a ping
	WarmUp    time.Duration // quiet in warm-up
	Order     time.Duration // quiet in an order
}

// Verdict is what the evidence says.
type Verdict uint8

// The verdicts.
const (
	Busy    Verdict = iota // or idle: as it should be
	Suspect                // not as it should be, and not ended for it
	Hung                   // to be ended
)

var verdictNames = [...]string{"busy", "suspect", "hung"}

// String gives the name shown in status.
func (v Verdict) String() string { return verdictNames[v] }

// computing is how many cores' time in a window is more than a process wants
// whose threads only answer pings.
const computing = 0.1

// patience is how much older than the limit a heartbeat may be of a process
// that computes: a machine under load may starve one thread of it.
const patience = 3

// Judge gives the verdict and what speaks for it; nothing where all is well.
func Judge(e Evidence, l Limits) (Verdict, []string) {
	if e.State == Zombie { // reaping takes a moment, and is not the worker's to do
		if e.Heartbeat <= l.Heartbeat {
			return Busy, nil
		}
		return Suspect, []string{"its process is dead and not reaped"}
	}
	if e.Heartbeat > l.Heartbeat {
		return frozen(e, l)
	}
	if e.State == Stopped {
		return Suspect, []string{"its process is stopped"}
	}
	limit := l.Order
	switch e.Phase {
	case Idle:
		return Busy, nil
	case WarmUp:
		limit = l.WarmUp
	}
	if limit == 0 || e.Quiet < limit/2 {
		return Busy, nil
	}
	reasons := []string{fmt.Sprintf("no progress in %s for %s", e.What, round(e.Progress)), usage(e), "it answers pings"}
	switch {
	case e.State != Live:
		return Suspect, append(reasons, "its process is "+e.State.String())
	case e.Peers:
		return Suspect, append(reasons, "it may be waiting for another worker")
	case e.First:
		return Suspect, append(reasons, "first orders are left to their deadline")
	case e.Quiet < limit:
		return Suspect, reasons
	}
	return Hung, reasons
}

// frozen judges a worker that does not answer pings.
func frozen(e Evidence, l Limits) (Verdict, []string) {
	reasons := []string{"no sign of life for " + round(e.Heartbeat)}
	switch {
	case e.State == Traced:
		return Suspect, append(reasons, "its process is "+e.State.String())
	case e.State != Live:
		return Hung, append(reasons, "its process is "+e.State.String())
	case e.Cores >= computing && e.Heartbeat <= patience*l.Heartbeat:
		return Suspect, append(reasons, usage(e))
	case e.Cores >= 0:
		reasons = append(reasons, usage(e))
	}
	return Hung, reasons
}

func usage(e Evidence) string {
	if e.Cores < 0 {
		return "what it computes is not known"
	}
	return fmt.Sprintf("its processes want %.2f cores", e.Cores)
}

func round(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
