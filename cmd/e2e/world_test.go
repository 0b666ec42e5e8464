package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// TestRunDirectoryRefused: a place that cannot be written is said at once.
func TestRunDirectoryRefused(t *testing.T) {
	if testing.Short() {
		return
	}
	h := newHome(t)
	if err := os.WriteFile(filepath.Join(h.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := filepath.Join(h.dir, "read-only")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	cmd := command(up("x", set("run.directory=read-only/runs")...)...)
	if os.Geteuid() == 0 { // modes do not bind root
		if !canMount(t) {
			t.Log("no mount namespace to be had: the read-only directory is left out")
			cmd = command(up("x", set("run.directory=file/runs")...)...)
		} else {
			cmd = mounted("ro", readOnly, "", cmd)
		}
	}
	for what, r := range map[string]*running{
		"a file in its place": h.start(up("x", set("run.directory=file")...)...),
		"read-only":           h.launch(nil, cmd),
	} {
		got := r.wait()
		got.want(t, 1, what)
		if !strings.Contains(got.err, "error: open run directory "+h.dir) || !strings.Contains(got.err, "hint: ") || strings.Count(got.err, "\n") != 2 {
			t.Errorf("%s: want one error and a hint, got %s", what, got.err)
		}
	}
}

// TestTooMuchMemory: arenas that cannot fit are refused before anything is
// started or built.
func TestTooMuchMemory(t *testing.T) {
	if testing.Short() {
		return
	}
	h := newHome(t)
	r := h.must(3, up("huge", set("workers.targets=200", "workers.slots=64", "training.buckets=[48, 1048576]", "target.embedded.sequence_tokens=262144")...)...)
	if !strings.Contains(r.err, "of memory") || !strings.Contains(r.err, "hint: ") {
		t.Errorf("want what is wanted and what there is, got %s", r.err)
	}
	s := summaryOf(t, h, "huge")
	for _, stage := range s.Stages {
		if stage.State != admin.StageSkipped {
			t.Errorf("want nothing begun, got stage %s %s", stage.Name, stage.State)
		}
	}
	if s.Exit != 3 || s.ExitReason == "" || len(s.Workers) != 0 {
		t.Errorf("want exit 3 with a reason in the summary, got %+v", s)
	}
}

// TestDiskFull: training outlives a checkpoint that the disk does not take.
func TestDiskFull(t *testing.T) {
	if testing.Short() {
		return
	}
	want(t) // target and data are there
	t.Parallel()
	h := newHome(t)
	checkpoints := h.path("full", "checkpoints")
	if err := os.MkdirAll(checkpoints, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, reason := command(endless("full")...), "no such file or directory"
	free := func(*running) error { return restoreDirectory(checkpoints) }
	if canMount(t) {
		reason = "no space left on device"
		cmd = mounted("size=8m,mode=0700", checkpoints, ".filler", cmd)
		free = func(r *running) error {
			return os.Remove(filepath.Join("/proc", strconv.Itoa(r.cmd.Process.Pid), "root", checkpoints, ".filler"))
		}
	}
	r := h.launch(nil, cmd)
	if reason != "no space left on device" {
		t.Log("no mount namespace to be had: the directory is taken away instead of filled")
		h.until(r, "full", "workers start", func(s admin.Snapshot) bool { return s.Client != nil && len(s.Workers) > 0 })
		if err := removeDirectory(checkpoints); err != nil {
			t.Fatal(err)
		}
	}
	failedAt := 0
	h.until(r, "full", "a checkpoint fails", func(s admin.Snapshot) bool {
		failedAt = int(s.Step)
		return strings.Contains(fmt.Sprint(admin.Judge(s.Status, time.Now())), reason)
	})
	if got := h.must(1, "health", "full"); !strings.HasPrefix(got.out, "degraded") || !strings.Contains(got.out, reason) {
		t.Errorf("health: want degraded and why, got %s", got.out)
	}
	h.until(r, "full", "training goes on", func(s admin.Snapshot) bool { return int(s.Step) > failedAt+20 && s.Checkpoint == nil })
	if err := free(r); err != nil {
		t.Fatal(err)
	}
	h.until(r, "full", "the next checkpoint is made", func(s admin.Snapshot) bool {
		return s.Checkpoint != nil && admin.Judge(s.Status, time.Now()).Status == admin.Healthy
	})
	h.must(0, "health", "full")
	r.signal(syscall.SIGINT)
	r.wait().want(t, 75, "up, interrupted")
	if failed := named(h.events("full"), "checkpoint failed"); len(failed) == 0 || failed[0].Level != "error" || !strings.Contains(failed[0].Message, reason) {
		t.Errorf("events: want a failed checkpoint and why, got %+v", failed)
	}
	h.must(0, "journal", "verify", "full")
}

// canMount reports whether a mount namespace can be had here.
func canMount(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	out, err := mounted("size=1m", dir, "", exec.Command("true")).CombinedOutput()
	if err != nil {
		t.Logf("mount in a namespace: %v: %s", err, out)
	}
	return err == nil
}

// mounted runs a command with a small file system of its own on dir, filled by
// a file where one is named. Nobody else sees the mount, and it ends with it.
func mounted(options, dir, filler string, cmd *exec.Cmd) *exec.Cmd {
	script := `mount -t tmpfs -o "$1" none "$2" || exit 99
		if [ -n "$3" ]; then cat /dev/zero > "$2/$3" 2>/dev/null; fi
		shift 3; exec "$@"`
	out := exec.Command("/bin/sh", append([]string{"-c", script, "sh", options, dir, filler}, cmd.Args...)...)
	out.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // made private by package syscall
	if os.Geteuid() != 0 {
		out.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		out.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		out.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		out.SysProcAttr.AmbientCaps = []uintptr{21} // CAP_SYS_ADMIN, of the new namespace
	}
	return out
}

// removeDirectory puts a link to nothing in a directory's place.
func removeDirectory(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(dir, "nothing"), dir)
}

func restoreDirectory(dir string) error {
	if err := os.Remove(dir); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o700)
}
