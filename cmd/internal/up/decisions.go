package up

import (
	"fmt"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
)

// What decisions are called in the status, and who is not a plugin.
const (
	decidedPlace   = "place"
	decidedArrange = "arrange"
	decidedVerdict = "on_failure"
	decidedBuiltin = "built-in"
)

// decisionsOf gives who made the newest decision of each kind. Under the lock.
func (u *up) decisionsOf(v drive.View) []admin.Decision {
	out := slices.Clone(u.decisions)
	by := func(builtin bool) string {
		if builtin {
			return decidedBuiltin
		}
		return v.Scheduler
	}
	if a := v.Arranged; a.Samples > 0 {
		out = append(out, admin.Decision{What: decidedArrange, By: by(a.Builtin), Detail: fmt.Sprintf("epoch %d: %d samples", a.Epoch, a.Samples), At: &a.At})
	}
	if j := v.Verdicts.Last; j.Life != (runner.Life{}) {
		at := j.At
		out = append(out, admin.Decision{What: decidedVerdict, By: by(j.Policy), Detail: u.verdictSaid(j), At: &at})
	}
	return out
}

// verdictSaid says in words what was done about a death.
func (u *up) verdictSaid(j core.Judged) string {
	said := fmt.Sprintf("%v: %s", j.Life, j.Decision)
	switch {
	case j.Policy:
		return said + ", by the restart policy"
	case j.Device != "":
		said += " on " + u.whereIs(j.Device)
	}
	if j.Reason != "" {
		said += ": " + j.Reason
	}
	return said
}

// whereIs names a device for people, also one without a worker at the start.
func (u *up) whereIs(device string) string {
	for _, g := range u.has.GPUs {
		if g.UUID == device {
			return fmt.Sprintf("GPU %d", g.Index)
		}
	}
	return device
}

// decided keeps who made the newest decision of a kind, for status.
func (u *up) decided(what, by, detail string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.decisions = append(slices.DeleteFunc(u.decisions, func(d admin.Decision) bool { return d.What == what }), admin.Decision{What: what, By: by, Detail: detail, At: &now})
}
