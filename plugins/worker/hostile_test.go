package worker_test

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/runner"
)

// bounds is what a hostile peer may cost the supervisor.
type bounds struct {
	heap uint64 // bytes above what was in use before
	took time.Duration
}

// within runs f and reports its cost where it is above what is allowed. Memory
// is looked at all the while: what was freed again counts as well.
func within(t *testing.T, b bounds, f func()) {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, peak := m.HeapAlloc, m.HeapAlloc
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends by stop; waited for below
		defer close(stopped)
		every := time.NewTicker(10 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-stop:
				return
			case <-every.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapAlloc)
			}
		}
	}()
	began := time.Now()
	f()
	took := time.Since(began)
	close(stop)
	<-stopped
	t.Logf("%d KiB of heap at the most, %v", (peak-before)>>10, took.Round(time.Millisecond))
	if peak-before > b.heap {
		t.Errorf("it cost %d KiB of heap, want at most %d", (peak-before)>>10, b.heap>>10)
	}
	if took > b.took {
		t.Errorf("it took %v, want at most %v", took, b.took)
	}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func logTo(w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: w, Level: hclog.Warn})
}

// TestI9_StderrFlood: a GiB of stderr is read as fast as it comes, so that its
// writer never blocks; the log file and memory have their bounds.
func TestI9_StderrFlood(t *testing.T) {
	t.Setenv("HF_FLOOD_MIB", map[bool]string{false: "1024", true: "64"}[testing.Short()])
	path := filepath.Join(t.TempDir(), "log")
	within(t, bounds{heap: 32 << 20, took: 3 * time.Minute}, func() {
		p := mustLaunch(t, "flood-err", func(s *worker.Spec) { // Describe answers only once all was taken
			s.LogPath, s.DescribeTimeout = path, 3*time.Minute
		})
		p.Kill(runner.CauseKilled, "enough", "")
		f := end(t, p)
		if n := len(f.Stderr); n != 50 || !strings.HasPrefix(f.Stderr[n-1], "line ") {
			t.Errorf("%d lines kept, the last %q", n, f.Stderr[max(0, n-1):])
		}
	})
	if n := sizeOf(t, path); n > 65<<20 {
		t.Errorf("the log file has %d MiB", n>>20)
	}
}

// TestI9_LogThatCannotBeWritten: a full disk under a worker's log costs the log
// file alone: the worker comes up, and its report has its last lines.
func TestI9_LogThatCannotBeWritten(t *testing.T) {
	var out buffer
	within(t, bounds{heap: 16 << 20, took: time.Minute}, func() {
		p := mustLaunch(t, "bad-log", func(s *worker.Spec) {
			s.LogPath, s.Logger = "/dev/full", logTo(&out)
		})
		if _, err := p.WarmUp(t.Context(), nil); err != nil {
			t.Error(err)
		}
		p.Kill(runner.CauseKilled, "enough", "")
		if f := end(t, p); !strings.Contains(strings.Join(f.Stderr, "\n"), "good line") {
			t.Errorf("kept %q", f.Stderr)
		}
	})
	if n := strings.Count(out.String(), "worker log file lost"); n != 1 || !strings.Contains(out.String(), "no space left on device") {
		t.Errorf("the host's log says %d times that the file is lost:\n%s", n, out.String())
	}
}

// TestI9_LaneClosedAlive: a worker that closes its lane and lives on is seen at
// once, and ended when somebody says so.
func TestI9_LaneClosedAlive(t *testing.T) {
	within(t, bounds{heap: 16 << 20, took: time.Minute}, func() {
		p := mustLaunch(t, "deaf", nil)
		if _, err := p.WarmUp(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if n, err := p.Lane().Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("the lane gives %d bytes, %v, want its end", n, err)
		}
		if !alive(p.Pid()) {
			t.Error("it was to live on")
		}
		p.Kill(runner.CauseProtocol, "it closed its lane", "")
		if f := end(t, p); f.Cause != runner.CauseProtocol || !f.ForcedBySelf {
			t.Errorf("report: %+v", f)
		}
	})
}
