package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// style is the colours, which a renderer leaves out where there are none.
type style struct {
	title, dim, good, busy, bad lipgloss.Style
}

func newStyle(r *lipgloss.Renderer) style {
	return style{
		title: r.NewStyle().Bold(true),
		dim:   r.NewStyle().Faint(true),
		good:  r.NewStyle().Foreground(lipgloss.Color("2")),
		busy:  r.NewStyle().Foreground(lipgloss.Color("6")),
		bad:   r.NewStyle().Foreground(lipgloss.Color("1")),
	}
}

// shownFailures is how many of the newest failures have room.
const shownFailures = 3

// View draws the whole status, and what Ctrl-C will do.
func (m model) View() string {
	lines := append(m.body(), "", m.style.dim.Render(oneLine("  "+m.foot(), m.width)))
	return strings.Join(lines, "\n") + "\n"
}

func (m model) body() []string {
	s := m.status
	lines := []string{m.head(), ""}
	for _, stage := range s.Stages {
		lines = append(lines, m.stage(stage))
	}
	if f := m.figures(); f != "" {
		lines = append(lines, "", "  "+f)
	}
	if l := m.losses(); l != "" {
		lines = append(lines, "  "+l)
	}
	if len(s.Workers) > 0 {
		lines = append(lines, "")
	}
	for _, w := range s.Workers {
		lines = append(lines, m.worker(w))
	}
	for _, d := range s.Devices {
		lines = append(lines, m.device(d))
	}
	if g := m.gate(); g != "" {
		lines = append(lines, "  "+g)
	}
	if p := m.scheduler(); p != "" {
		lines = append(lines, p)
	}
	return append(lines, m.troubles()...)
}

func (m model) head() string {
	s := m.status
	parts := []string{"dflash-runner", s.Name, string(s.State)}
	if s.Lineage > 1 {
		parts = append(parts, fmt.Sprintf("lineage %d", s.Lineage))
	}
	if !s.StartedAt.IsZero() && s.UpdatedAt.After(s.StartedAt) {
		parts = append(parts, seconds(s.UpdatedAt.Sub(s.StartedAt).Seconds()))
	}
	return m.style.title.Render(oneLine(strings.Join(parts, " · "), m.width))
}

// stage draws one stage: a mark, its name, and how far it is.
func (m model) stage(s admin.Stage) string {
	mark, paint := "○", m.style.dim
	switch s.State {
	case admin.StageRunning:
		mark, paint = "●", m.style.busy
	case admin.StageDone, admin.StageReused:
		mark, paint = "✓", m.style.good
	case admin.StageSkipped:
		mark = "–"
	case admin.StageStopped:
		mark = "■"
	case admin.StageFailed:
		mark, paint = "✗", m.style.bad
	}
	text := fmt.Sprintf("%-16s", strings.ReplaceAll(s.Name, "_", " "))
	switch {
	case s.State == admin.StageRunning && s.Total > 1:
		text += m.bar(s)
	case s.State == admin.StageRunning: // one piece, or no telling how many: a bar would say nothing
		text += strings.TrimSpace(seconds(s.Seconds) + "  " + s.Phase)
	case s.State == admin.StageDone:
		text += strings.TrimSpace(seconds(s.Seconds) + "  " + figuresOf(s))
	case s.State != admin.StageWaiting:
		text += s.State
	}
	return "  " + paint.Render(mark) + " " + strings.TrimRight(oneLine(text, m.width-4), " ")
}

// bar draws progress, with percent, count and time to go; with the time it
// took so far where nobody can say.
func (m model) bar(s admin.Stage) string {
	width := min(max(m.width-60, 8), 40)
	done := min(s.Done, s.Total)
	full := int(done * uint64(width) / s.Total)
	text := strings.Repeat("━", full) + strings.Repeat("─", width-full)
	text += fmt.Sprintf(" %3d %%  %s/%s", done*100/s.Total, amount(s, s.Done), amount(s, s.Total))
	if s.ETAS != nil {
		text += "  eta " + seconds(*s.ETAS)
	} else {
		text += "  " + seconds(s.Seconds)
	}
	if s.Phase != "" {
		text += "  " + s.Phase
	}
	if f := figuresOf(s); f != "" {
		text += "  " + f
	}
	return text
}

// amount writes how much of a stage: the environment is counted in bytes.
func amount(s admin.Stage, n uint64) string {
	if s.Name == "environment" {
		return bytesText(n)
	}
	return count(n)
}

// stateOf names a worker's state for people: one that is gone has ended as it
// was told to.
func stateOf(w admin.WorkerStatus) string {
	if w.State == life.Gone.String() {
		return "ended"
	}
	return w.State
}

func (m model) figures() string {
	s := m.status
	if s.Step == 0 && s.Acceptance == nil {
		return ""
	}
	parts := []string{fmt.Sprintf("step %s/%s", count(s.Step), count(s.StepsTotal)), fmt.Sprintf("epoch %d", s.Epoch)}
	parts = figure(parts, "loss", "%.4f", s.Loss)
	parts = figure(parts, "held-out", "%.4f", s.HeldoutLoss)
	parts = figure(parts, "", "%.0f tokens/s lately", s.TokensPerS)
	parts = figure(parts, "acceptance", "%.2f", s.Acceptance)
	return oneLine(strings.Join(parts, " · "), m.width-2)
}

func (m model) worker(w admin.WorkerStatus) string {
	paint := m.style.busy
	switch w.State {
	case "ready":
		paint = m.style.good
	case "lost", "backoff", "failed":
		paint = m.style.bad
	case "gone":
		paint = m.style.dim
	}
	doing := w.Order
	if doing == "" {
		doing = w.Phase
	}
	if doing != "" || w.State != "ready" {
		doing = strings.TrimSpace(doing + " " + age(w.SinceMS))
	}
	if doing == "" {
		doing = warmth(w.Certificate)
	}
	rest := fmt.Sprintf(" %-8s %-20s %10s", oneLine(m.where(w.Device), 8), oneLine(doing, 20), bytesText(w.RSSBytes))
	if w.Generation > 1 {
		rest += fmt.Sprintf("  generation %d", w.Generation)
	}
	return fmt.Sprintf("  %-12s", w.Name) + paint.Render(fmt.Sprintf("%-10s", stateOf(w))) + oneLine(rest, max(m.width-24, 1))
}

// where names a worker's device: cpu, or the GPU's index where it is known.
func (m model) where(device string) string {
	for _, d := range m.status.Devices {
		if d.UUID == device {
			return fmt.Sprintf("GPU %d", d.Index)
		}
	}
	return device
}

// warmth says whether compiled kernels came from the cache, and how long the
// warm-up took; nothing where nothing is compiled.
func warmth(c *runner.Certificate) string {
	if c == nil || c.Cache == "" || c.Cache == "none" {
		return ""
	}
	return fmt.Sprintf("%s, %s", c.Cache, seconds(c.Seconds["total"]))
}

// device draws one GPU as the probe saw it last.
func (m model) device(d admin.DeviceStatus) string {
	paint := m.style.bad
	switch d.Status {
	case admin.Healthy:
		paint = m.style.good
	case admin.Unknown:
		paint = m.style.busy
	}
	var parts []string
	if d.Status != admin.Unknown { // what was known last is not how it is
		parts = figure(parts, "", "%.0f %%", d.Utilisation)
		if used, total := d.MemoryUsedBytes, d.MemoryTotalBytes; used != nil && total != nil {
			parts = append(parts, bytesText(*used)+" of "+bytesText(*total))
		}
		parts = figure(parts, "", "%.0f W", d.PowerW)
		parts = figure(parts, "", "%.0f °C", d.TemperatureC)
	}
	if d.Detail != "" {
		parts = append(parts, d.Detail)
	}
	return fmt.Sprintf("  %-12s", fmt.Sprintf("GPU %d", d.Index)) + paint.Render(fmt.Sprintf("%-10s", d.Status)) + oneLine(" "+strings.Join(parts, " · "), max(m.width-24, 1))
}

func (m model) gate() string {
	g := m.status.Gate
	if len(g.Holders) == 0 && len(g.Queue) == 0 {
		return ""
	}
	parts := []string{fmt.Sprintf("gate %d wide", g.Width)}
	for _, h := range g.Holders {
		parts = append(parts, h.String()+" warms up")
	}
	for _, q := range g.Queue {
		parts = append(parts, fmt.Sprintf("%s waits %s", q.Worker, age(q.WaitedMS)))
	}
	return oneLine(strings.Join(parts, " · "), m.width-2)
}

// troubles draws the newest failures and what is degraded.
func (m model) troubles() (lines []string) {
	failures := slices.Clone(m.status.Failures)
	if !m.status.State.Over() { // those of earlier lives are nothing that happens now
		failures = slices.DeleteFunc(failures, func(f runner.Failure) bool { return f.At.Before(m.status.StartedAt) })
	}
	incidents := runner.Incidents(failures)
	for _, in := range incidents[max(0, len(incidents)-shownFailures):] {
		f := in.First
		lines = append(lines, m.style.bad.Render(oneLine("  ! "+incidentLine(in), m.width)))
		if f.Hint != "" {
			lines = append(lines, oneLine("    hint: "+f.Hint, m.width))
		}
	}
	for _, r := range m.status.Degraded {
		lines = append(lines, m.style.bad.Render(oneLine(fmt.Sprintf("  ! %s: %s", r.Name, r.Detail), m.width)))
	}
	if len(lines) > 0 {
		lines = append([]string{""}, lines...)
	}
	return lines
}

func (m model) foot() string {
	switch {
	case m.status.State.Over():
		return ownEndLine(m.status)
	case m.stops > 1:
		return "ending now"
	case m.stops == 1 || m.status.State == admin.Stopping:
		return "checkpoint, then a clean end · Ctrl-C again: end now"
	default:
		return "Ctrl-C: checkpoint and end · twice: end now"
	}
}

// textWidth is the width of a status that is printed once.
const textWidth = 120

// Text draws a status once, without colours and keys.
func Text(s admin.Status) string {
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.Ascii)
	lines := model{status: s, width: textWidth, style: newStyle(r)}.body()
	if s.State.Over() {
		lines = append(lines, "", "  "+endLine(s))
	}
	return strings.Join(lines, "\n") + "\n"
}

// OneLine takes line ends and control characters out of a text.
func OneLine(s string) string { return oneLine(s, 0) }
