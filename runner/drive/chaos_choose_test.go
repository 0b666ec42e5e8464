package drive_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// strikes looks at the machines again and again, and strikes in states that
// were not struck so in this history.
func (t *term) strikes() {
	r := t.random("strikes")
	for quiet := 0; ; quiet-- {
		select {
		case <-t.over:
			return
		case <-time.After(300*time.Microsecond + upTo(r, time.Millisecond)):
		}
		v, ok := t.loop.View(context.Background())
		if !ok || v.Finished {
			return
		}
		if t.w.struck != nil {
			t.w.struck.see(v.View)
			if d := t.w.s.crowded(v.View); d != "" {
				t.w.t.Errorf("too many workers on device %s: %+v", d, v.Workers)
				return
			}
		}
		if t.w.left == 0 || quiet > 0 || t.number > 12 {
			continue
		}
		if k, x := t.choose(r, v.View); x != nil {
			t.w.left--
			if t.w.s.aim == nil {
				quiet = r.IntN(30)
			}
			t.strike(k, *x, v.View)
		}
	}
}

// choose draws a strike that is due now, or none.
func (t *term) choose(r *rand.Rand, v core.View) (kind, *core.WorkerView) {
	x := &v.Workers[r.IntN(len(v.Workers))]
	if a := t.w.s.aim; a != nil {
		for i := range v.Workers {
			if k, ok := t.hit(r, *a, v.Workers[i].State, v.Phase); ok {
				return k, &v.Workers[i]
			}
		}
		return t.pave(r, v)
	}
	kinds := [2]kind{kind(t.w.s.random("kind").IntN(int(numKinds))), kind(t.w.s.random("other kind").IntN(int(numKinds)))}
	if k := kinds[r.IntN(2)]; t.due(r.Float64(), k, *x, v.Phase) {
		return k, x
	}
	return 0, nil
}

// hit gives a kind of fault for a worker that is where the history's cell is:
// the cell's own, then the others.
func (t *term) hit(r *rand.Rand, a cell, state, phase string) (kind, bool) {
	if c := cellOf(state, phase, a.kind); c != a {
		return 0, false
	}
	var left []kind
	for k := range numKinds {
		if c := (cell{a.state, a.phase, k}); c.why() == "" && t.w.here.at(c) == 0 {
			left = append(left, k)
		}
	}
	switch {
	case t.w.here.at(a) == 0:
		return a.kind, true
	case len(left) > 0 && r.IntN(3) == 0:
		return left[r.IntN(len(left))], true
	}
	return 0, false
}

// pave gives a strike that leads towards the cell that the history is about.
func (t *term) pave(r *rand.Rand, v core.View) (kind, *core.WorkerView) {
	state, phase := stateNames[t.w.s.aim.state], phaseNames[t.w.s.aim.phase]
	pick := func(role runner.Role, states ...string) *core.WorkerView {
		for i := range v.Workers {
			if x := &v.Workers[(i+int(v.Step))%len(v.Workers)]; x.Worker.Role == role && slices.Contains(states, x.State) {
				return x
			}
		}
		return nil
	}
	out := 0 // targets that are not ready
	in := false
	for _, x := range v.Workers {
		in = in || x.State == state
		if x.Worker.Role == runner.Target && x.State != "ready" {
			out++
		}
	}
	ends := state == "draining" || state == "gone"
	switch {
	case r.Float64() > 0.1 || v.Step == 0:
	case ends && !v.Ending && v.Step >= 2 && v.Phase != "apart":
		return kTerm, pick(runner.Target, "ready")
	case ends && v.Ending && phase == "aborting" && v.Phase == "open":
		return kKill, pick(runner.Drafter, "draining")
	case !ends && in && (phase == "aborting" || phase == "joining") && v.Phase == "open":
		return kKill, pick(runner.Drafter, "ready")
	case !ends && (out == 0 || out == 1 && state == "waiting") && (v.Phase == phase || v.Phase == "open"):
		if state == "lost" {
			return kLane, pick(runner.Target, "ready")
		}
		return kKill, pick(runner.Target, "ready")
	}
	return 0, nil
}

// due reports whether a cell is to be struck now: once a history, and rarely
// where the run is most of the time.
func (t *term) due(chance float64, k kind, x core.WorkerView, phase string) bool {
	c := cellOf(x.State, phase, k)
	if c.why() != "" || t.w.here.at(c) > 0 {
		return false
	}
	switch {
	case phase != "open" && phase != "apart":
		return chance < 0.6
	case x.State == "ready" || x.State == "gone":
		return chance < 0.02
	}
	return chance < 0.2
}
