package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

const (
	mib           = 1 << 20
	ticksPerS     = 100 // USER_HZ, the same on every Linux that Go runs on
	statusSamples = 20
)

// Finished gives a supervisor's own costs over a run that is over, and how long
// it took to its first step, decided at first; zero where that is not known.
func Finished(s admin.Summary, first time.Time) (*Report, error) {
	if s.Rows == 0 {
		return nil, runner.Errorf(runner.Invalid, "read figures of run %s: want committed rows, got none", s.Name)
	}
	r := start("run")
	goal := atMost(1)
	if s.Lineage > 1 { // after a resume, rows are of all its processes, CPU time of the last
		goal = nil
		r.Facts["lineage"] = fmt.Sprintf("%d (rows may be of more processes than the CPU time)", s.Lineage)
	}
	if s.SupervisorCPU.RowMS != nil {
		r.cpuRow(s.SupervisorCPU)
		goal = nil // that of a row, of which start and end are no part
	}
	r.add("supervisor CPU time a committed row", s.SupervisorCPUS*1000/float64(s.Rows), "ms", 0, goal)
	r.add("supervisor peak memory (VmHWM)", float64(s.SupervisorPeakBytes)/mib, "MiB", 0, atMost(48))
	r.add("supervisor CPU time in all", s.SupervisorCPUS, "s", 0, nil)
	r.add("committed rows", float64(s.Rows), "rows", 0, nil)
	r.cpuParts(s.SupervisorCPU)
	if !first.IsZero() {
		r.add("start to first step", first.Sub(s.StartedAt).Seconds(), "s", 0, firstStepGoal(s.Stages))
	}
	r.Facts["run"], r.Facts["exit"] = s.Name, fmt.Sprint(s.Exit)
	return r.done(), nil
}

// cpuRow adds what a row of training cost the supervisor.
func (r *Report) cpuRow(c admin.SupervisorCPU) {
	r.add(fmt.Sprintf("supervisor CPU time a row of training (%d rows)", c.Rows), *c.RowMS, "ms", 0, atMost(1))
}

// cpuParts adds what the supervisor's CPU time went to, in order of time.
func (r *Report) cpuParts(c admin.SupervisorCPU) {
	for _, part := range []string{"start", "launch", "warm_up", "train", "finish", "export"} {
		if s, ok := c.Parts[part]; ok {
			r.add("supervisor CPU time, "+part, s, "s", 0, nil)
		}
	}
}

// firstStepGoal holds once everything that is built before a run exists.
func firstStepGoal(stages []admin.Stage) *Goal {
	for _, s := range stages {
		switch s.Name {
		case "environment", "target", "regenerate", "prepare":
			if s.State != admin.StageReused {
				return nil
			}
		}
	}
	return atMost(25)
}

// FirstStep reads from a run's events when it decided a step first, not counting
// lives before since; zero where it never did.
func FirstStep(ctx context.Context, events string, since time.Time) (time.Time, error) {
	for line, err := range admin.Tail(ctx, events, 0, false, nil) {
		if err != nil {
			return time.Time{}, runner.Errorf(runner.NotFound, "read events: %w", err)
		}
		if !bytes.Contains(line, []byte(`"step decided"`)) {
			continue
		}
		var e struct {
			At    time.Time
			Event string
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return time.Time{}, runner.Errorf(runner.Invalid, "read events: %w", err)
		}
		if e.Event == "step decided" && e.At.After(since) {
			return e.At, nil
		}
	}
	return time.Time{}, nil
}

// Live measures a supervisor that runs: the share of a core that it uses over
// a while, its peak memory, and how long self, this program, takes to give the
// run's status from another process.
func Live(ctx context.Context, s admin.Status, over time.Duration, self string) (*Report, error) {
	r := start("run")
	pid := s.Process.Pid
	before, err := cpuTicks(pid)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	wait := time.NewTimer(over)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return nil, runner.Errorf(runner.Canceled, "watch run: interrupted")
	}
	after, err := cpuTicks(pid)
	if err != nil {
		return nil, err
	}
	share := float64(after-before) / ticksPerS / time.Since(begun).Seconds() * 100
	now, err := admin.Open(ctx, s.Directory)
	if err != nil {
		return nil, err
	}
	rows := now.RowsCommitted - s.RowsCommitted
	peak, err := peakBytes(pid)
	if err != nil {
		return nil, err
	}
	answers, err := repeat(statusSamples, func() (time.Duration, error) { return askStatus(ctx, self, s.Directory) })
	if err != nil {
		return nil, err
	}
	r.add("supervisor CPU", share, "% of a core", 0, idleGoal(rows))
	r.add("rows committed meanwhile", float64(rows), "rows", 0, nil)
	if rows > 0 {
		r.add("supervisor CPU time a committed row", float64(after-before)*1000/ticksPerS/float64(rows), "ms", 0, atMost(1))
	}
	r.add("supervisor peak memory (VmHWM)", float64(peak)/mib, "MiB", 0, atMost(48))
	answers = sortedCopy(answers)
	r.add("status command p50", micro(quantile(answers, 0.5))/1000, "ms", 0, atMost(50))
	r.add("status command max", micro(quantile(answers, 1))/1000, "ms", 0, nil)
	r.Facts["run"], r.Facts["stage"] = s.Name, s.Stage+" to "+now.Stage
	r.Facts["watched"] = over.String()
	return r.done(), nil
}

// idleGoal applies while no row is committed.
func idleGoal(rows uint64) *Goal {
	if rows > 0 {
		return nil
	}
	return atMost(1)
}

// askStatus runs `status RUN --json`.
func askStatus(ctx context.Context, self, directory string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, self, "status", directory, "--json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begun := time.Now()
	err := cmd.Run()
	took := time.Since(begun)
	if err != nil {
		return 0, runner.Errorf(runner.Internal, "run status: %w: %s", err, lastLine(stderr.Bytes()))
	}
	return took, nil
}

// cpuTicks gives the user and system time of a process so far.
func cpuTicks(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, runner.Errorf(runner.NotFound, "read CPU time of process %d: %w", pid, err)
	}
	return ticksOf(string(text))
}

// ticksOf reads fields 14 and 15, counted from the bracket that ends the name.
func ticksOf(stat string) (uint64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, runner.Errorf(runner.Internal, "read CPU time: want 52 fields in stat, got %d", len(fields)+2)
	}
	user, err := strconv.ParseUint(fields[11], 10, 64)
	if err != nil {
		return 0, runner.Errorf(runner.Internal, "read CPU time: %w", err)
	}
	system, err := strconv.ParseUint(fields[12], 10, 64)
	if err != nil {
		return 0, runner.Errorf(runner.Internal, "read CPU time: %w", err)
	}
	return user + system, nil
}

// peakBytes gives a process's VmHWM.
func peakBytes(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, runner.Errorf(runner.NotFound, "read memory of process %d: %w", pid, err)
	}
	return peakOf(string(text))
}

func peakOf(status string) (uint64, error) {
	for _, line := range strings.Split(status, "\n") {
		var kib uint64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, runner.Errorf(runner.Internal, "read memory: want VmHWM in status, got none")
}
