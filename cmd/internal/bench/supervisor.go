package bench

import (
	"bytes"
	"context"
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

// Finished gives a supervisor's own costs over a run that is over.
func Finished(s admin.Summary) (*Report, error) {
	if s.Rows == 0 {
		return nil, runner.Errorf(runner.Invalid, "read figures of run %s: want committed rows, got none", s.Name)
	}
	r := start("run")
	goal := atMost(1)
	if s.Lineage > 1 { // after a resume, rows are of all its processes, CPU time of the last
		goal = nil
		r.Facts["lineage"] = fmt.Sprintf("%d (rows may be of more processes than the CPU time)", s.Lineage)
	}
	r.add("supervisor CPU time a committed row", s.SupervisorCPUS*1000/float64(s.Rows), "ms", 0, goal)
	r.add("supervisor peak memory (VmHWM)", float64(s.SupervisorPeakBytes)/mib, "MiB", 0, atMost(48))
	r.add("supervisor CPU time in all", s.SupervisorCPUS, "s", 0, nil)
	r.add("committed rows", float64(s.Rows), "rows", 0, nil)
	before, reused := 0.0, true
	for _, stage := range s.Stages {
		switch stage.Name {
		case "environment", "target":
			reused = reused && stage.State == admin.StageReused
			before += stage.Seconds
		case "regenerate", "prepare", "launch", "warm_up", "evaluate_before":
			before += stage.Seconds
		}
	}
	goal = nil
	if reused { // it holds once environment and target exist
		goal = atMost(25)
	}
	r.add("stages before training", before, "s", 0, goal)
	r.Facts["run"], r.Facts["exit"] = s.Name, fmt.Sprint(s.Exit)
	return r.done(), nil
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
