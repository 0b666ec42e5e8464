package view

import (
	"fmt"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Failure gives a death's report as lines: what died, of what, what to do, and
// what it said last.
func Failure(f runner.Failure) []string {
	lines := []string{
		fmt.Sprintf("%s.%d (%s, %s) died at %s: %s", f.Worker, f.Generation, f.Role, f.Device, f.At.Local().Format(time.DateTime), f.Cause),
		"  " + OneLine(f.Message),
	}
	add := func(when bool, format string, a ...any) {
		if when {
			lines = append(lines, "  "+OneLine(fmt.Sprintf(format, a...)))
		}
	}
	add(f.Hint != "", "hint: %s", f.Hint)
	add(f.Signal != "", "signal %s", f.Signal)
	add(f.Signal == "", "exit code %d", f.ExitCode)
	add(f.ForcedBySelf, "ended by this program")
	add(f.OOMKilled != "", "killed for memory: %s", f.OOMKilled)
	add(f.Follows != "", "after the death of %s, which it may come from", f.Follows)
	add(f.Doing != "", "died at: %s", f.Doing)
	add(f.LastOrder != "", "last order: %s", f.LastOrder)
	add(f.LastSignMS >= 0, "last sign of life %s before", (time.Duration(f.LastSignMS) * time.Millisecond).String())
	add(f.PeakBytes > 0, "peak memory %s", bytesText(f.PeakBytes))
	for _, part := range []struct {
		name string
		text []string
	}{{"kernel log", f.Kernel}, {"traceback", f.Traceback}, {"stdout before the handshake", f.StdoutNoise}, {"last lines on stderr", f.Stderr}} {
		if len(part.text) == 0 {
			continue
		}
		lines = append(lines, "  "+part.name+":")
		for _, line := range part.text {
			lines = append(lines, "    "+OneLine(line))
		}
	}
	return lines
}
