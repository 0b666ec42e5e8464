package probe

import (
	"fmt"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// GPU is one to watch.
type GPU struct {
	UUID  string
	Index int
	Name  string
}

// slowing are the reasons for lower clocks that mean trouble; a power cap is
// what a busy GPU runs at.
var slowing = []string{"hardware slowdown", "thermal, by software", "thermal, by hardware", "power brake"}

// judge grades one GPU by its newest sample. Uncorrected errors of memory
// count from the first sample on: what was before is not this run's.
func judge(g GPU, d device, at time.Time, firstErrors uint64) admin.DeviceStatus {
	s := admin.DeviceStatus{UUID: g.UUID, Index: g.Index, Name: g.Name, Status: admin.Healthy, At: &at,
		Utilisation: d.Utilisation, MemoryUsedBytes: d.MemoryUsed, MemoryTotalBytes: d.MemoryTotal, PowerW: d.PowerW, PowerLimitW: d.PowerLimitW,
		TemperatureC: d.TemperatureC, ECCCorrected: d.ECCCorrected, ECCUncorrected: d.ECCUncorrected, Throttle: d.Throttle,
		RecoveryAction: d.Recovery, Processes: d.Processes, ProcessCount: d.ProcessCount}
	grade := func(g admin.Grade, format string, a ...any) {
		if s.Status == admin.Healthy || s.Status == admin.Degraded && g == admin.Critical {
			s.Status, s.Detail = g, fmt.Sprintf(format, a...)
		}
	}
	if d.Error != nil {
		s.Status, s.Detail = admin.Unknown, *d.Error
		return s
	}
	if r := recovery(d); r != "" {
		g := admin.Degraded
		if resets(r) {
			g = admin.Critical
		}
		grade(g, "the driver asks for: %s", r)
	}
	if e := d.ECCUncorrected; e != nil && *e > firstErrors {
		grade(admin.Degraded, "%d uncorrected errors of its memory since the run began", *e-firstErrors)
	}
	for _, reason := range d.Throttle {
		for _, bad := range slowing {
			if reason == bad {
				grade(admin.Degraded, "slowed down: %s", reason)
			}
		}
	}
	return s
}

// recovery is what the driver asks for; empty: nothing, or it does not say.
func recovery(d device) string {
	if d.Recovery == nil || *d.Recovery == "none" {
		return ""
	}
	return *d.Recovery
}

// resets tells an action that takes the GPU away from one on its links alone.
func resets(action string) bool {
	return !strings.Contains(action, "p2p") && !strings.Contains(action, "imex")
}

// gone are words of the driver's errors for a GPU that does not come back by itself.
var gone = []string{"lost", "requires reset", "reset required"}

// unfit says why no process should be started on a GPU any more: it is lost,
// the driver wants it reset, or its memory gave wrong bits since the run began.
func unfit(d device, firstErrors uint64) string {
	if d.Error != nil {
		for _, word := range gone {
			if strings.Contains(strings.ToLower(*d.Error), word) {
				return *d.Error
			}
		}
		return "" // it cannot be asked, which need not be its own fault
	}
	if r := recovery(d); r != "" && resets(r) {
		return "the driver asks for: " + r
	}
	if e := d.ECCUncorrected; e != nil && *e > firstErrors {
		return fmt.Sprintf("%d uncorrected errors of its memory since the run began", *e-firstErrors)
	}
	return ""
}

// unknown is a GPU of which nothing is known now, with what was known last.
func unknown(s admin.DeviceStatus, why string) admin.DeviceStatus {
	s.Status, s.Detail = admin.Unknown, why
	return s
}
