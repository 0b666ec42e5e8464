package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// scheduler draws the scheduling plugin: how it does, and who decided last.
// Without one there is nothing to say.
func (m model) scheduler() string {
	p := m.status.Plugin
	if p == nil {
		return ""
	}
	paint := m.style.busy
	switch p.State {
	case "running":
		paint = m.style.good
	case "quarantined", admin.PluginRefused:
		paint = m.style.bad
	}
	parts := []string{strings.TrimSpace(p.Name + " " + p.Version), fmt.Sprintf("%d questions · %d used", p.Calls, p.Answers)}
	if p.State == admin.PluginRefused {
		parts[1] = "the built-in decides alone"
	}
	if wait := p.Waiting.String(); wait != "" {
		parts = append(parts, wait)
	}
	if p.Refused > 0 {
		parts = append(parts, fmt.Sprintf("%d refused", p.Refused))
	}
	if p.Strikes > 0 {
		parts = append(parts, fmt.Sprintf("strike %d", p.Strikes))
	}
	if p.RSSBytes > 0 {
		parts = append(parts, fmt.Sprintf("%d MiB", p.RSSBytes>>20))
	}
	if by := m.status.DecidedBy(); by != "" {
		parts = append(parts, by)
	}
	return fmt.Sprintf("  %-12s", "scheduler") + paint.Render(fmt.Sprintf("%-11s", p.State)) + oneLine(" "+strings.Join(parts, " · "), max(m.width-25, 1))
}

// losses draws the recent loss of each source of the data, where there are several.
func (m model) losses() string {
	var parts []string
	for _, x := range m.status.Losses {
		parts = figure(parts, lastOf(oneLine(x.Source, 0), 30), "%.4f", x.Loss)
	}
	if len(m.status.Losses) < 2 || len(parts) == 0 {
		return ""
	}
	return oneLine("loss by source: "+strings.Join(parts, " · "), m.width-2)
}

// lastOf shortens a path from its front: files of one directory differ at its end.
func lastOf(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return "…" + string(r[len(r)-most+1:])
	}
	return text
}

// pluginLines tells of a question that its plugin leaves open for long, at
// distances that widen.
func pluginLines(last, next admin.Status) []string {
	if next.Plugin == nil || reminders(next.Plugin.Waiting) == 0 {
		return nil
	}
	if p, is := last.Plugin, next.Plugin.Waiting; p != nil && p.Waiting != nil && p.Waiting.Question == is.Question && p.Waiting.WaitedMS <= is.WaitedMS && reminders(p.Waiting) == reminders(is) {
		return nil // the same
	}
	return []string{fmt.Sprintf("scheduler %s: %s", next.Plugin.Name, next.Plugin.Waiting)}
}

// reminders is how often a wait was worth a line: at LongWait, 10 and 30 seconds,
// and each minute.
func reminders(w *admin.PluginWait) (n int64) {
	if w == nil {
		return 0
	}
	for _, at := range []time.Duration{admin.LongWait, 10 * time.Second, 30 * time.Second} {
		if w.WaitedMS >= at.Milliseconds() {
			n++
		}
	}
	return n + w.WaitedMS/time.Minute.Milliseconds()
}
