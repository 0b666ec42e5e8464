package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// smiDeadline bounds one call of nvidia-smi, which hangs where a driver does.
const smiDeadline = 15 * time.Second

// GPUs lists the machine's GPUs, and the pairs without peer access.
func GPUs(ctx context.Context) ([]GPU, [][2]int, error) { return readGPUs(ctx, "nvidia-smi") }

// readGPUs asks nvidia-smi. One that is not there is no error: there is no GPU
// that we could use.
func readGPUs(ctx context.Context, smi string) (gpus []GPU, noPeer [][2]int, err error) {
	if _, err := exec.LookPath(smi); err != nil {
		return nil, nil, nil
	}
	out, err := ask(ctx, smi, "--query-gpu=index,name,uuid,memory.total,driver_version,mig.mode.current,memory.used", "--format=csv,noheader,nounits")
	if err != nil {
		return nil, nil, err
	}
	if gpus, err = parseGPUs(out); err != nil || len(gpus) == 0 {
		return gpus, nil, err
	}
	if out, err = ask(ctx, smi, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"); err != nil {
		return gpus, nil, fmt.Errorf("processes: %w", err)
	}
	addProcesses(gpus, out)
	if len(gpus) < 2 {
		return gpus, nil, nil
	}
	if out, err = ask(ctx, smi, "topo", "-p2p", "r"); err != nil {
		return gpus, nil, fmt.Errorf("peer access: %w", err)
	}
	return gpus, parsePeers(out), nil
}

// Links gives what keeps the GPUs from reading one another's memory, by UUID.
func (r Readings) Links() (l placement.Links) {
	uuid := map[int]string{}
	for _, g := range r.GPUs {
		uuid[g.Index] = g.UUID
		if g.MIG {
			l.MIG = append(l.MIG, g.UUID)
		}
	}
	for _, pair := range r.NoPeer {
		l.NoPeer = append(l.NoPeer, [2]string{uuid[pair[0]], uuid[pair[1]]})
	}
	return l
}

func ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, smiDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", errors.New("no answer in time")
	}
	if err != nil {
		said := strings.TrimSpace(string(out))
		return "", fmt.Errorf("%w: %.200s", err, said)
	}
	return string(out), nil
}

// parseGPUs reads the answer, one GPU a line.
func parseGPUs(out string) (gpus []GPU, err error) {
	for line := range strings.Lines(out) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		f := strings.Split(line, ",")
		if len(f) != 7 {
			return nil, fmt.Errorf("want 7 fields a line, got %.120q", line)
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		index, err := strconv.Atoi(f[0])
		if err != nil {
			return nil, fmt.Errorf("want an index first, got %.120q", line)
		}
		mib, err := strconv.ParseUint(f[3], 10, 40)
		if err != nil {
			mib = 0 // "[N/A]" where memory is the host's
		}
		used, err := strconv.ParseUint(f[6], 10, 40)
		if err != nil {
			used = 0
		}
		gpus = append(gpus, GPU{Index: index, Name: f[1], UUID: f[2], MemoryBytes: mib << 20, UsedBytes: used << 20, Driver: f[4], MIG: f[5] == "Enabled"})
	}
	return gpus, nil
}

// addProcesses reads who computes where, "UUID, pid" a line; what is said
// instead where nobody does, or nobody can be seen, is skipped.
func addProcesses(gpus []GPU, out string) {
	for line := range strings.Lines(out) {
		uuid, pid, ok := strings.Cut(strings.TrimSpace(line), ",")
		n, err := strconv.Atoi(strings.TrimSpace(pid))
		if !ok || err != nil {
			continue
		}
		for i := range gpus {
			if gpus[i].UUID == uuid {
				gpus[i].Processes = append(gpus[i].Processes, n)
			}
		}
	}
}

// parsePeers reads the matrix of `topo -p2p r` and gives the pairs without
// peer access, lower index first.
func parsePeers(out string) (none [][2]int) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasPrefix(f[0], "GPU") {
			continue
		}
		row, err := strconv.Atoi(strings.TrimPrefix(f[0], "GPU"))
		if err != nil || strings.HasPrefix(f[1], "GPU") { // the heading
			continue
		}
		for column, cell := range f[1:] {
			if column > row && cell != "OK" && cell != "X" {
				none = append(none, [2]int{row, column})
			}
		}
	}
	return none
}
