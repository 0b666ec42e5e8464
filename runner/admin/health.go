package admin

import (
	"fmt"
	"strings"
	"time"
)

// Grade is how well a run or a part of it does. The set is closed.
type Grade string

// The grades.
const (
	Healthy  Grade = "healthy"
	Degraded Grade = "degraded" // works, not as it should
	Critical Grade = "critical" // does not work, or does not run
	Unknown  Grade = "unknown"  // cannot be told
)

// rank orders grades by how much they weigh in the whole.
func (g Grade) rank() int {
	return map[Grade]int{Healthy: 0, Unknown: 1, Degraded: 2, Critical: 3}[g]
}

// Health is `health --json`.
type Health struct {
	Status Grade   `json:"status"`
	Checks []Check `json:"checks"`
}

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	Status Grade  `json:"status"`
	Detail string `json:"detail"`
}

// Exit gives the command's exit code: 0 healthy, 1 degraded or unknown, 2
// critical or not running.
func (h Health) Exit() int {
	switch h.Status {
	case Healthy:
		return 0
	case Critical:
		return 2
	}
	return 1
}

// staleAfter is how old a running run's status may be. It is refreshed every
// second; a busy machine may take a while.
const staleAfter = 30 * time.Second

// Judge tells how a run does, from its status alone: the worst of its checks.
func Judge(s Status, now time.Time) Health {
	h := Health{Status: Healthy, Checks: []Check{supervisorCheck(s, now)}}
	if !s.State.Over() {
		h.Checks = append(h.Checks, workersCheck(s), arenasCheck(s))
		if len(s.Devices) > 0 {
			h.Checks = append(h.Checks, devicesCheck(s.Devices))
		}
		h.Checks = append(h.Checks, pluginCheck(s)...)
		for _, r := range s.Degraded {
			h.Checks = append(h.Checks, Check{r.Name, Degraded, r.Detail})
		}
	}
	for _, c := range h.Checks {
		if c.Status.rank() > h.Status.rank() {
			h.Status = c.Status
		}
	}
	return h
}

// AnswerWithin is how long a run may take to answer before its health is unknown.
const AnswerWithin = 2 * time.Second

// Silent is the health of a run that should answer and does not: what it wrote
// before says nothing of now.
func Silent(s Status) Health {
	detail := fmt.Sprintf("does not answer within %v; its process %d is %s", AnswerWithin, s.Process.Pid, s.Process.State())
	return Health{Status: Unknown, Checks: []Check{{"supervisor", Unknown, detail}}}
}

func supervisorCheck(s Status, now time.Time) Check {
	c := Check{Name: "supervisor"}
	switch age := now.Sub(s.UpdatedAt); {
	case s.State == Lost:
		c.Status, c.Detail = Critical, fmt.Sprintf("gone without an end: last heard of at step %d", s.Step)
	case s.State == Ended && s.Exit != nil:
		c.Status, c.Detail = Critical, fmt.Sprintf("not running: ended with exit %d", *s.Exit)
	case s.State == Ended:
		c.Status, c.Detail = Critical, "not running: ended"
	case s.UpdatedAt.IsZero():
		c.Status, c.Detail = Unknown, "no status yet"
	case age > staleAfter:
		c.Status, c.Detail = Unknown, fmt.Sprintf("no news for %s", age.Round(time.Second))
	default:
		c.Status, c.Detail = Healthy, string(s.State)
	}
	return c
}

// workersCheck: a failed worker is critical, one that starts again degraded; a
// run that has not trained yet is still making its workers.
func workersCheck(s Status) Check {
	c := Check{Name: "workers", Status: Healthy, Detail: fmt.Sprintf("%d of %d ready", ready(s.Workers), len(s.Workers))}
	var named []string
	for _, w := range s.Workers {
		g, what := Healthy, ""
		switch {
		case w.State == "failed":
			g, what = Critical, "failed and will not be started again"
		case w.State == "lost" || w.State == "backoff":
			g, what = Degraded, "died and starts again"
		case w.Generation > 1 && w.State != "ready" && w.State != "gone" && w.State != "draining":
			g, what = Degraded, "is being started again"
		}
		if g == Healthy || g.rank() < c.Status.rank() {
			continue
		}
		if g.rank() > c.Status.rank() {
			c.Status, named = g, nil
		}
		named = append(named, fmt.Sprintf("%s %s", w.Name, what))
	}
	if len(named) > 0 {
		c.Detail = strings.Join(named, "; ")
	}
	return c
}

func ready(ws []WorkerStatus) (n int) {
	for _, w := range ws {
		if w.State == "ready" {
			n++
		}
	}
	return n
}

// devicesCheck: the worst of the GPUs; one that the probe knows nothing of is
// unknown, never healthy.
func devicesCheck(ds []DeviceStatus) Check {
	c := Check{Name: "devices", Status: Healthy, Detail: fmt.Sprintf("%d watched", len(ds))}
	for _, d := range ds {
		if d.Status.rank() > c.Status.rank() {
			c.Status, c.Detail = d.Status, fmt.Sprintf("GPU %d: %s", d.Index, d.Detail)
		}
	}
	return c
}

// pluginCheck: a plugin that owes an answer for too long is degraded; of one to
// whom something happened Degraded tells all but for how long it is waited for.
func pluginCheck(s Status) []Check {
	p, grade := s.Plugin, Healthy
	if p == nil || p.State == PluginRefused {
		return nil
	}
	if p.Waiting.TooLong() {
		grade = Degraded
	}
	switch wait := p.Waiting.String(); {
	case p.Refused == 0 && p.Ends == 0:
		return []Check{{"scheduler", grade, p.well(s)}}
	case wait != "":
		return []Check{{"scheduler", grade, fmt.Sprintf("plugin %s: %s", p.Name, wait)}}
	}
	return nil
}

// arenasCheck: quarantined slots are memory that waits for a death to be proved.
func arenasCheck(s Status) Check {
	n, q := 0, 0
	for _, a := range s.Arenas {
		for _, slot := range a.Slots {
			n++
			if slot.State == "quarantined" {
				q++
			}
		}
	}
	if q > 0 {
		return Check{"arenas", Degraded, fmt.Sprintf("%d of %d slots quarantined", q, n)}
	}
	return Check{"arenas", Healthy, fmt.Sprintf("%d slots", n)}
}
