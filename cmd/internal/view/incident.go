package view

import (
	"fmt"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Incident gives an incident as lines: the report of its first cause, who died
// with the same message, and then, indented, what came after it.
func Incident(in runner.Incident) []string {
	lines := Failure(in.First)
	if len(in.Same) > 0 {
		lines = append(lines, "  the same message: "+lives(in.Same))
	}
	if len(in.After) == 0 {
		return lines
	}
	lines = append(lines, "  after it, and maybe because of it:")
	for _, f := range in.After {
		for _, line := range Failure(f) {
			lines = append(lines, "    "+line)
		}
	}
	return lines
}

// incidentLine is an incident in one line: who died, of what, and whom it took along.
func incidentLine(in runner.Incident) string {
	s := fmt.Sprintf("%s: %s: %s", lives(append([]runner.Failure{in.First}, in.Same...)), in.First.Cause, oneLine(in.First.Message, 400))
	if len(in.After) > 0 {
		s += fmt.Sprintf(" (after it %s)", lives(in.After))
	} else if in.First.Follows != "" {
		s += fmt.Sprintf(" (after %s)", in.First.Follows)
	}
	return s
}

// lives names the lives that died.
func lives(fs []runner.Failure) string {
	var names []string
	for _, f := range fs {
		names = append(names, fmt.Sprintf("%s.%d", f.Worker, f.Generation))
	}
	return strings.Join(names, ", ")
}
