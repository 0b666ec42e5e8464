package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// progressLines is how many lines a long stage prints on its way.
const progressLines = 20

// Plain prints a run as lines, each when something changed.
type Plain struct {
	w    io.Writer
	last admin.Status
}

// NewPlain makes a printer.
func NewPlain(w io.Writer) *Plain { return &Plain{w: w} }

// Print writes what changed since the last status. Not for concurrent use.
func (p *Plain) Print(s admin.Status) error {
	for _, line := range Lines(p.last, s) {
		if _, err := fmt.Fprintln(p.w, line); err != nil {
			return runner.Errorf(runner.Unavailable, "print progress: %w", err)
		}
	}
	p.last = s
	return nil
}

// Lines gives the lines that tell a reader what changed from one status to the
// next. It is pure; the first status is compared with the zero one.
func Lines(last, next admin.Status) (lines []string) {
	if next.State != last.State && !next.State.Over() {
		lines = append(lines, stateLine(last, next))
	}
	lines = append(lines, stageLines(last, next)...)
	lines = append(lines, workerLines(last, next)...)
	lines = append(lines, deviceLines(last, next)...)
	lines = append(lines, failureLines(last, next)...)
	if r := next.Restored; r != nil && (last.Restored == nil || *r != *last.Restored) {
		lines = append(lines, "restored: "+restoredLine(r))
	}
	if c := next.Checkpoint; c != nil && (last.Checkpoint == nil || c.Name != last.Checkpoint.Name) { // the best one is published a second time
		lines = append(lines, fmt.Sprintf("checkpoint %s at step %d", c.Name, c.Step))
	}
	lines = append(lines, acceptanceLines(last, next)...)
	lines = append(lines, pluginLines(last, next)...)
	for _, r := range next.Degraded {
		if !slices.Contains(last.Degraded, r) {
			lines = append(lines, fmt.Sprintf("degraded: %s: %s", r.Name, oneLine(r.Detail, 0)))
		}
	}
	if next.State.Over() && next.State != last.State {
		lines = append(lines, ownEndLine(next))
	}
	return lines
}

// restoredLine tells where a run went on, and what that cost.
func restoredLine(r *admin.RestoreStatus) string {
	again := fmt.Sprintf("%d decided steps are trained again", r.Undone)
	switch r.Undone {
	case 0:
		again = "no step is trained again"
	case 1:
		again = "1 decided step is trained again"
	}
	return fmt.Sprintf("lineage %d goes on from step %d; %s", r.Lineage, r.Step, again)
}

// acceptanceLines tells of each evaluation, by the step that was evaluated: the
// run may be further by then.
func acceptanceLines(last, next admin.Status) []string {
	a, at := next.Acceptance, next.AcceptanceAt
	if a == nil || at == nil || last.Acceptance != nil && last.AcceptanceAt != nil && *a == *last.Acceptance && *at == *last.AcceptanceAt {
		return nil
	}
	return []string{fmt.Sprintf("acceptance %.2f at step %d", *a, *at)}
}

func stateLine(last, next admin.Status) string {
	if last.State == "" {
		return fmt.Sprintf("run %s: %s in %s", next.Name, next.State, next.Directory)
	}
	return fmt.Sprintf("run %s: %s", next.Name, next.State)
}

// endLine tells how the run ended.
func endLine(s admin.Status) string {
	line := fmt.Sprintf("run %s: %s", s.Name, s.State)
	if s.Exit != nil {
		line += fmt.Sprintf(" with exit %d", *s.Exit)
	}
	if s.ExitReason != "" {
		line += ": " + oneLine(s.ExitReason, 0)
	}
	return line
}

// ownEndLine is endLine for whoever ran it, and is told of a refusal as an error.
func ownEndLine(s admin.Status) string {
	if s.Exit != nil && (*s.Exit == runner.ExitUsage || *s.Exit == runner.ExitPreflight) {
		s.ExitReason = ""
	}
	return endLine(s)
}

// stageLines tells beginnings, ends and every twentieth part of a stage.
func stageLines(last, next admin.Status) (lines []string) {
	for _, s := range next.Stages {
		before := admin.Stage{State: admin.StageWaiting}
		if i := slices.IndexFunc(last.Stages, func(o admin.Stage) bool { return o.Name == s.Name }); i >= 0 {
			before = last.Stages[i]
		}
		switch {
		case s.State == admin.StageWaiting:
		case s.State != before.State && s.State != admin.StageRunning:
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s%s %s", s.Name, s.State, after(s), figuresOf(s))))
		case s.State != before.State:
			lines = append(lines, s.Name+": "+s.State)
			if s.Phase == admin.PhaseElsewhere {
				lines = append(lines, s.Name+": "+s.Phase)
			}
		case s.Phase != before.Phase && s.Phase == admin.PhaseElsewhere:
			lines = append(lines, s.Name+": "+s.Phase)
		case s.Total > 1 && s.Done*progressLines/s.Total > before.Done*progressLines/max(before.Total, 1):
			lines = append(lines, progressLine(s, next))
		}
	}
	return lines
}

func after(s admin.Stage) string {
	if s.Seconds < 0.5 {
		return ""
	}
	return " after " + seconds(s.Seconds)
}

// progressLine is one stage on its way; training shows the run's own figures.
func progressLine(s admin.Stage, of admin.Status) string {
	parts := []string{fmt.Sprintf("%s: %s of %s", s.Name, amount(s, s.Done), amount(s, s.Total))}
	if s.Name == "train" {
		parts = figure(parts, "loss", "%.4f", of.Loss)
		parts = figure(parts, "", "%.0f tokens/s lately", of.TokensPerS)
	} else if f := figuresOf(s); f != "" {
		parts = append(parts, f)
	}
	if s.ETAS != nil {
		parts = append(parts, "eta "+seconds(*s.ETAS))
	}
	return strings.Join(parts, ", ")
}

// figuresOf writes a stage's figures by name.
func figuresOf(s admin.Stage) string {
	names := make([]string, 0, len(s.Figures))
	for name := range s.Figures {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %.4g", strings.ReplaceAll(name, "_", " "), s.Figures[name])
	}
	return strings.Join(names, ", ")
}

func workerLines(last, next admin.Status) (lines []string) {
	for _, w := range next.Workers {
		var before admin.WorkerStatus
		if i := slices.IndexFunc(last.Workers, func(o admin.WorkerStatus) bool { return o.Name == w.Name }); i >= 0 {
			before = last.Workers[i]
		}
		if w.State == before.State && w.Generation == before.Generation {
			continue
		}
		line := fmt.Sprintf("%s: %s", w.Name, stateOf(w))
		if w.Generation > 1 {
			line += fmt.Sprintf(" (generation %d)", w.Generation)
		}
		if w.State == "ready" && w.Certificate != nil {
			c := w.Certificate
			line += fmt.Sprintf(": certificate with %s, %d dense calls, %d compiles in the second pass", c.Attention, c.DenseCalls, c.SecondPassCompiles)
			if c.FP8Products > 0 {
				line += fmt.Sprintf(", %d products in %s", c.FP8Products, c.Precision)
			}
			if warm := warmth(c); warm != "" {
				line += ", cache " + warm
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// deviceLines tells of GPUs that do otherwise than before; the first time only
// of those that are known not to be well.
func deviceLines(last, next admin.Status) (lines []string) {
	for _, d := range next.Devices {
		was := admin.Healthy
		if i := slices.IndexFunc(last.Devices, func(o admin.DeviceStatus) bool { return o.UUID == d.UUID }); i >= 0 {
			was = last.Devices[i].Status
		} else if d.Status == admin.Unknown {
			continue // no sample yet
		}
		if d.Status != was {
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("GPU %d: %s: %s", d.Index, d.Status, oneLine(d.Detail, 400)), ": "))
		}
	}
	return lines
}

func failureLines(last, next admin.Status) (lines []string) {
	var news []runner.Failure
	for _, f := range next.Failures {
		if f.At.Before(next.StartedAt) {
			continue // of an earlier life: nothing that happens now
		}
		if slices.ContainsFunc(last.Failures, func(o runner.Failure) bool {
			return o.Worker == f.Worker && o.Generation == f.Generation && o.At.Equal(f.At)
		}) {
			continue
		}
		news = append(news, f)
	}
	for _, in := range runner.Incidents(news) {
		lines = append(lines, "failure: "+incidentLine(in))
		if in.First.Hint != "" {
			lines = append(lines, "hint: "+oneLine(in.First.Hint, 400))
		}
	}
	return lines
}
