package core

import (
	"fmt"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// repeat is a death that would come again if its cause is in the work itself.
type repeat struct {
	role        runner.Role
	doing       string
	cause       runner.Cause
	fingerprint string

	life   runner.Life
	step   runner.Step
	reaped uint64 // deaths by then, this one included
}

func (r repeat) same(o repeat) bool {
	return r.role == o.role && r.doing == o.doing && r.cause == o.cause && r.fingerprint == o.fingerprint
}

// repeated reports whether a death is one that a restart cannot help: the same
// cause with the same message came of the same work before, and the work was
// begun again after that. It says so in words; else it remembers the death.
func (c *Core) repeated(w *worker, f *runner.Failure) string {
	if w.fault.doing == "" || w.fault.passing || w.fault.follows != "" && f.ForcedBySelf || !f.Deterministic() {
		return ""
	}
	r := repeat{w.id.Role, w.fault.doing, f.Cause, runner.Fingerprint(f.Message), w.current(), w.fault.step, c.reaped}
	for _, o := range c.repeats {
		if o.same(r) && w.fault.began >= o.reaped {
			return fmt.Sprintf("%v and %v died of the same cause at the same work (%s), which a restart cannot help: %s: %s", o.life, r.life, r.doing, f.Cause, f.Message)
		}
	}
	c.repeats = append(slices.Clip(c.repeats), r)
	c.repeats = c.repeats[max(0, len(c.repeats)-keepFailures):]
	return ""
}

// forgive forgets deaths at work that was got over since: by a step that is
// decided what was before it, by a worker that is ready the starts of its role.
func (c *Core) forgive(over func(repeat) bool) {
	c.repeats = slices.DeleteFunc(slices.Clone(c.repeats), over)
}

// passed forgets deaths at steps that are behind: the image of the step before
// the newest may still be open.
func (c *Core) passed() {
	c.forgive(func(r repeat) bool { return r.step > 0 && r.step+1 < c.decided })
}

// started forgets deaths of a role's starts: one has worked.
func (c *Core) started(role runner.Role) {
	c.forgive(func(r repeat) bool { return r.role == role && (r.doing == launching || r.doing == warming) })
}
