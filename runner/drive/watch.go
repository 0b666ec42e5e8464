package drive

import (
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/hang"
)

// looks is how often a worker is looked at within the age of a sign of life
// that is borne.
const looks = 5

// watch looks at a life's process; it ends with the process. The loop judges.
func (l *Loop) watch(id runner.Life, e *life, p Process) {
	interval := l.c.Hang.Heartbeat / looks
	every := time.NewTicker(interval)
	defer every.Stop()
	for {
		select {
		case <-p.Done():
			return
		case <-every.C:
			now := time.Now()
			l.pulse.look(now)
			fresh := l.pulse.fresh(now, l.c.Hang.Heartbeat) // it may be this process that gave no sign of asking
			v := p.Vitals(!fresh && now.Sub(e.last()) > interval)
			if !l.inbox.post(func() { l.weigh(id, e, v, now, fresh) }) {
				return
			}
		}
	}
}

// last is when the life was last known to get on.
func (e *life) last() time.Time { return time.Unix(0, e.alive.Load()) }

// weigh judges a life by a look at it. Where it hangs the core is told, which
// ends it; where it may, people are.
func (l *Loop) weigh(id runner.Life, e *life, v hang.Vitals, now time.Time, fresh bool) {
	s, ok := l.core.Standing(id)
	if !ok || fresh || l.lives[id] != e {
		e.track = hang.Track{}
		l.worse(id, nil)
		return
	}
	progress := e.last()
	if s.Since.After(progress) {
		progress = s.Since
	}
	x := hang.Evidence{Vitals: v, Phase: s.Phase, What: s.What, Peers: s.Peers, First: s.First, Progress: now.Sub(progress)}
	e.track, x.Cores, x.Quiet = e.track.Look(now, v, progress)
	verdict, reasons := hang.Judge(x, l.c.Hang)
	if verdict != hang.Hung {
		l.worse(id, reasons)
		return
	}
	l.handle(core.Unfit{Life: id, Cause: runner.CauseDeadline, Message: "it hangs: " + strings.Join(reasons, "; "), Hint: hintOf(v.State)})
}

// worse shows what is not as it should be of a life, or that nothing is.
func (l *Loop) worse(id runner.Life, reasons []string) {
	name := id.Worker.String()
	if len(reasons) == 0 {
		delete(l.degrade, name)
		return
	}
	l.degrade[name] = "it may hang: " + strings.Join(reasons, "; ")
}

// hintOf says what to do about a process that hangs in a state.
func hintOf(s hang.State) string {
	switch s {
	case hang.Stopped:
		return "somebody stopped the process: look who, and at job control"
	case hang.Blocked:
		return "look at the machine's kernel log, its disks and its driver"
	}
	return "failure.hang says how long a worker may be quiet"
}
