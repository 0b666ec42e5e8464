package host

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// maxReason bounds what is said of a verdict: it stands in exit_reason.
const maxReason = 500

// cpu is the device that is no GPU.
const cpu = "cpu"

// JudgeArrange says what is wrong with an order of samples, or nothing.
func JudgeArrange(q scheduler.ArrangeRequest, samples []runner.Sample) error {
	if want := min(q.Count, len(q.Pool)); len(samples) != want {
		return fmt.Errorf("want %d samples, got %d", want, len(samples))
	}
	left := standing(q.Pool, samples)
	for i, s := range samples {
		n, there := left[s]
		if !there {
			return fmt.Errorf("place %d: sample %d is not in the pool", i, s)
		}
		if n == 0 {
			return fmt.Errorf("place %d: sample %d stands there again", i, s)
		}
		left[s] = n - 1
	}
	return nil
}

// standing counts how often each sample of an answer stands in the pool. A pool
// is many times as long as an answer: the low bits of a sample, marked where
// one was given, pass over nearly all that was not without asking the map.
func standing(pool []scheduler.Candidate, samples []runner.Sample) map[runner.Sample]int {
	left := make(map[runner.Sample]int, len(samples))
	var marks [1 << 10]uint64
	for _, s := range samples {
		marks[s>>6%(1<<10)] |= 1 << (s % 64)
	}
	for i := range pool {
		if s := pool[i].Sample; marks[s>>6%(1<<10)]>>(s%64)&1 == 1 {
			left[s]++
		}
	}
	return left
}

// JudgeAssign says what is wrong with a choice of a target, or nothing.
func JudgeAssign(q scheduler.AssignRequest, target runner.Worker) error {
	if !slices.Contains(q.Free, target) {
		return fmt.Errorf("row %d: want one of %v, got %.40q/%d", q.Row, q.Free, string(target.Role), target.Rank)
	}
	return nil
}

// JudgePlace says what is wrong with a placement, or nothing: every worker
// once, on a device that is there and not critical, within its free memory, none
// beside another unless they may share, and no two drafters on one GPU.
func JudgePlace(q scheduler.PlaceRequest, placements []scheduler.Placement) error {
	if len(placements) != len(q.Needs) {
		return fmt.Errorf("want %d placements, got %d", len(q.Needs), len(placements))
	}
	devices, needs := map[string]scheduler.Device{}, map[runner.Worker]scheduler.Need{}
	for _, d := range q.Devices {
		devices[d.ID] = d
	}
	for _, n := range q.Needs {
		needs[n.Worker] = n
	}
	placed, taken := map[runner.Worker]bool{}, map[string]uint64{}
	drafter := map[string]runner.Worker{}
	for _, p := range placements {
		d, there := devices[p.Device]
		need, known := needs[p.Worker]
		before, shared := taken[p.Device]
		switch {
		case !known:
			return fmt.Errorf("worker %.40q/%d is not of this run", string(p.Worker.Role), p.Worker.Rank)
		case placed[p.Worker]:
			return fmt.Errorf("%s is placed twice", p.Worker)
		case !there:
			return fmt.Errorf("%s: unknown device %.80q", p.Worker, p.Device)
		case d.Health == "critical":
			return fmt.Errorf("%s: device %s does not work", p.Worker, d.ID)
		case shared && !q.Colocate:
			return fmt.Errorf("%s: device %s has a worker, and they do not share", p.Worker, d.ID)
		case p.Worker.Role == runner.Drafter && drafter[d.ID] != (runner.Worker{}) && d.ID != cpu:
			return fmt.Errorf("%s: GPU %s has %s, and two drafters of one GPU cannot sum their gradients", p.Worker, d.ID, drafter[d.ID])
		case before+need.MemoryBytes > d.FreeBytes:
			return fmt.Errorf("%s: device %s: want %d bytes, got %d of %d left", p.Worker, d.ID, need.MemoryBytes, d.FreeBytes-before, d.FreeBytes)
		}
		placed[p.Worker], taken[p.Device] = true, before+need.MemoryBytes
		if p.Worker.Role == runner.Drafter {
			drafter[d.ID] = p.Worker
		}
	}
	return nil
}

// JudgeVerdict says what is wrong with a decision about a death, or nothing.
func JudgeVerdict(q scheduler.FailureRequest, v scheduler.Verdict) error {
	if len(v.Reason) > maxReason || strings.ContainsFunc(v.Reason, unicode.IsControl) {
		return fmt.Errorf("want a reason of one line and at most %d bytes, got %d bytes: %.80q", maxReason, len(v.Reason), v.Reason)
	}
	switch v.Decision {
	case scheduler.Restart, scheduler.Stop:
		return nil
	case scheduler.Replace:
		for _, d := range q.Devices {
			if d.ID == v.Device && d.ID != q.Device && d.Health != "critical" {
				return nil
			}
		}
		return fmt.Errorf("replace %s: want another device that works, got %.80q", q.Worker, v.Device)
	}
	return fmt.Errorf("want restart, replace or stop, got %.40q", string(v.Decision))
}
