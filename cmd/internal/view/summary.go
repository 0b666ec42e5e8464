package view

import (
	"fmt"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// Summary gives a run's end as text: what was trained, and how much faster the
// target decodes with it. Figures that were not measured are left out.
func Summary(s admin.Summary) string {
	var b strings.Builder
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, a...))
	}
	if (s.Exit == runner.ExitUsage || s.Exit == runner.ExitPreflight) && s.Steps == 0 { // why is printed as the error
		return fmt.Sprintf("run %s ended with exit %d, before any step\n", s.Name, s.Exit)
	}
	fmt.Fprintf(&b, "run %s ended with exit %d: %s\n", s.Name, s.Exit, oneLine(s.ExitReason, 0))
	row("trained", "%s steps, %s rows, %s samples, %s tokens", count(s.Steps), count(s.Rows), count(s.Samples), count(s.Tokens))
	if s.LossFirst != nil && s.LossLast != nil {
		row("loss", "%.4f -> %.4f", *s.LossFirst, *s.LossLast)
	}
	if s.AcceptanceBefore != nil && s.AcceptanceAfter != nil {
		row("acceptance", "%.2f -> %.2f tokens per target forward, over %d held-out prompts%s", *s.AcceptanceBefore, *s.AcceptanceAfter, s.Prompts, lossless(s))
	}
	if s.AcceptanceNonlooping != nil && s.LoopingShare != nil {
		row("", "%.2f on the %d prompts that do not loop (%.0f %% do)", *s.AcceptanceNonlooping, s.PromptsNonlooping, *s.LoopingShare*100)
	}
	if s.AcceptanceNonlooping == nil && s.LoopingShare != nil && *s.LoopingShare == 1 {
		row("", "all %d prompts loop: their texts are easy to guess", s.Prompts)
	}
	if s.PlainTokensPerS != nil && s.DecodeTokensPerS != nil && s.Speedup != nil {
		row("decoding", "%.1f -> %.1f tokens/s, %.2f x", *s.PlainTokensPerS, *s.DecodeTokensPerS, *s.Speedup)
	}
	if s.TargetTop1 != nil {
		row("target", "held-out top-1 accuracy %.3f", *s.TargetTop1)
	}
	if s.TokensPerS != nil {
		row("speed", "%.0f tokens/s over all of training", *s.TokensPerS)
	}
	if w := s.ImageStall; w.Share != nil && w.Commits > 0 {
		row("images", "kept commits waiting %.1f %% of the time, %.0f ms at the longest", *w.Share*100, w.LongestS*1000)
	}
	if r := s.Restored; r != nil {
		row("restored", "%s", restoredLine(r))
	}
	if s.Skipped > 0 {
		row("skipped", "%s samples", count(s.Skipped))
	}
	if p := s.Plugin; p != nil && p.State != admin.PluginRefused { // else it is among what is degraded
		row("scheduler", "%s %s: %s answers, %s refused, %s by the built-in; %s of %s samples elsewhere than the built-in has them", p.Name, p.Version,
			count(p.Answers), count(p.Refused), count(p.Fallbacks), count(p.Moved), count(p.Samples))
	}
	for _, r := range s.Degraded {
		row("degraded", "%s: %s", r.Name, oneLine(r.Detail, 0))
	}
	if n := len(s.Failures); n > 0 {
		row("deaths", "%d, see `dflash-runner logs --failure`", n)
	}
	if s.Export != "" {
		row("export", "%s", s.Export)
	}
	if s.Exit == runner.ExitStopped && s.Checkpoint != "" {
		row("checkpoint", "%s", s.Checkpoint)
	}
	if s.Next != "" { // an error's hint is printed with the error
		row("next", "%s", oneLine(s.Next, 0))
	}
	if all := runner.Incidents(s.Failures); s.Exit == runner.ExitHopeless && len(all) > 0 {
		for _, line := range Incident(all[len(all)-1]) {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

func lossless(s admin.Summary) string {
	switch {
	case s.Lossless == nil:
		return ""
	case *s.Lossless:
		return ", lossless"
	}
	return ", NOT lossless"
}
