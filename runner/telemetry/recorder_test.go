package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	when    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	drafter = runner.Worker{Role: runner.Drafter, Rank: 1}
)

// recorder gives a recorder, its file and what it logs; nothing may be read before it is closed.
func recorder(t *testing.T, capacity int) (*Recorder, string, *bytes.Buffer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	var log bytes.Buffer
	r, err := NewRecorder(path, hclog.New(&hclog.LoggerOptions{Output: &log, DisableTime: true}), capacity)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeRecorder(t, r) })
	return r, path, &log
}

func closeRecorder(t *testing.T, r *Recorder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// TestEventsBecomeLines: each event is a line of the file and a line of the
// log, in order, with the fixed keys.
func TestEventsBecomeLines(t *testing.T) {
	r, path, log := recorder(t, 10)
	r.Observe(runner.Event{At: when, Level: runner.Info, Name: "step committed", Step: 7, Figures: map[string]float64{"loss": 1.5, "bytes": 3}})
	r.Observe(runner.Event{At: when, Level: runner.Alarm, Name: "worker died", Worker: &drafter, Generation: 3, Lineage: 2, Row: 9,
		Hint: "look", Failure: &runner.Failure{Worker: drafter, Device: "cpu", Cause: runner.CauseOOM, Message: "out of memory"}})
	closeRecorder(t, r)
	wantFile := []string{
		`{"at":"2026-01-02T03:04:05Z","level":"info","event":"step committed","step":7,"figures":{"bytes":3,"loss":1.5}}`,
		`{"at":"2026-01-02T03:04:05Z","level":"error","event":"worker died","worker":"drafter/1","generation":3,"row":9,"lineage":2,"hint":"look","failure":{`,
	}
	for i, line := range readLines(t, path) {
		if !strings.HasPrefix(line, wantFile[i]) || !json.Valid([]byte(line)) {
			t.Errorf("file line %d:\ngot  %s\nwant %s", i, line, wantFile[i])
		}
	}
	want := "[INFO]  step committed: step=7 bytes=3 loss=1.5\n" +
		"[ERROR] worker died: worker=drafter/1 role=drafter rank=1 generation=3 lineage=2 row=9 device=cpu cause=oom err=\"out of memory\" hint=look\n"
	if log.String() != want {
		t.Errorf("log:\ngot  %s\nwant %s", log, want)
	}
}

// TestEventsAreAppended: a resumed run goes on in the same file.
func TestEventsAreAppended(t *testing.T) {
	r, path, _ := recorder(t, 10)
	r.Observe(runner.Event{Level: runner.Info, Name: "one"})
	closeRecorder(t, r)
	again, err := NewRecorder(path, hclog.NewNullLogger(), 10)
	if err != nil {
		t.Fatal(err)
	}
	again.Observe(runner.Event{Level: runner.Info, Name: "two"})
	closeRecorder(t, again)
	lines := readLines(t, path)
	if len(lines) != 2 || !strings.Contains(lines[0], `"one"`) || !strings.Contains(lines[1], `"two"`) {
		t.Errorf("got %q", lines)
	}
}

// TestFiguresThatAreNotFinite: JSON has none; the line stays, with null.
func TestFiguresThatAreNotFinite(t *testing.T) {
	line, err := encode(runner.Event{At: when, Level: runner.Warn, Name: "row skipped", Figures: map[string]float64{"loss": math.NaN(), "norm": math.Inf(-1), "w": 2}})
	want := `"figures":{"loss":null,"norm":null,"w":2}}` + "\n"
	if err != nil || !strings.HasSuffix(string(line), want) {
		t.Errorf("got %s, %v, want it to end in %s", line, err, want)
	}
}

// TestLinesAreBounded: whatever a dying worker said.
func TestLinesAreBounded(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	line, err := encode(runner.Event{Level: runner.Alarm, Name: "worker died", Message: long, Hint: long,
		Failure: &runner.Failure{Cause: runner.CauseCUDA, Message: long, Hint: long, Stderr: []string{long}, Traceback: []string{long}, StdoutNoise: []string{long}}})
	if err != nil || len(line) > 8<<10 || !json.Valid(line) {
		t.Fatalf("got %d bytes, %v", len(line), err)
	}
	if !strings.Contains(string(line), "cut: the event took") || !strings.Contains(string(line), `"cause":"cuda"`) {
		t.Errorf("got %.200s", line)
	}
}

// stuck is a log output that blocks until it is let go.
type stuck struct{ entered, release chan struct{} }

func (s stuck) Write(b []byte) (int, error) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.release
	return len(b), nil
}

// TestObserveNeverWaits: with the writer stuck, events beyond the queue are
// lost, counted, and told once it moves again.
func TestObserveNeverWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	out := stuck{make(chan struct{}, 1), make(chan struct{})}
	r, err := NewRecorder(path, hclog.New(&hclog.LoggerOptions{Output: out}), 4)
	if err != nil {
		t.Fatal(err)
	}
	r.Observe(runner.Event{Level: runner.Info, Name: "first"})
	<-out.entered // the writer holds it; the queue is empty
	for range 10 {
		r.Observe(runner.Event{Level: runner.Info, Name: "more"})
	}
	if lost, _ := r.Lost(); lost != 6 {
		t.Errorf("got %d lost, want 6", lost)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Close(ctx); err == nil || !errors.Is(err, context.Canceled) {
		t.Errorf("close while stuck: got %v, want the context's error", err)
	}
	close(out.release)
	closeRecorder(t, r)
	r.Observe(runner.Event{Level: runner.Info, Name: "late"}) // no panic: counted
	lines := readLines(t, path)
	if len(lines) != 6 || !strings.Contains(strings.Join(lines, "\n"), `"event":"events lost"`) {
		t.Errorf("got %d lines, want first, four more and the loss: %q", len(lines), lines)
	}
	if lost, _ := r.Lost(); lost != 7 {
		t.Errorf("got %d lost, want 7", lost)
	}
}

// TestDiskFull: events go on to the log; the trouble is told once, and counted.
func TestDiskFull(t *testing.T) {
	var log bytes.Buffer
	r, err := NewRecorder("/dev/full", hclog.New(&hclog.LoggerOptions{Output: &log, DisableTime: true}), 10)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.Observe(runner.Event{Level: runner.Info, Name: "step committed"})
	}
	closeRecorder(t, r)
	if _, unsaved := r.Lost(); unsaved != 3 {
		t.Errorf("got %d unsaved, want 3", unsaved)
	}
	if s := log.String(); strings.Count(s, "step committed") != 3 || strings.Count(s, "event not saved") != 1 {
		t.Errorf("got log %s", s)
	}
}

func TestNoSuchDirectory(t *testing.T) {
	if _, err := NewRecorder(filepath.Join(t.TempDir(), "none", "events.jsonl"), hclog.NewNullLogger(), 1); err == nil {
		t.Error("want an error, got none")
	}
}

func TestMetrics(t *testing.T) {
	r, _, _ := recorder(t, 10)
	r.Observe(runner.Event{Level: runner.Warn, Name: "step aborted"})
	r.Observe(runner.Event{Level: runner.Warn, Name: "step aborted"})
	loss := 2.25
	target := runner.Worker{Role: runner.Target}
	status := admin.Status{
		State: admin.Training, Step: 12, RowsCommitted: 96, Loss: &loss, Gate: admin.GateStatus{Width: 1},
		Workers: []admin.WorkerStatus{{Name: drafter, Role: runner.Drafter, State: "ready", Device: "a \"b\" \\ \n", Generation: 2, RSSBytes: 1 << 20}},
		Arenas: []admin.ArenaStatus{{Worker: target, Kind: "memfd", Bytes: 4096, HandOffs: 5,
			Slots: []admin.SlotStatus{{State: "full"}, {State: "free"}, {State: "full"}}}},
	}
	busy, watts, used, none := 97.0, 650.5, uint64(1<<30), uint64(0)
	status.Devices = []admin.DeviceStatus{
		{UUID: "GPU-a", Index: 0, Status: admin.Healthy, Utilisation: &busy, PowerW: &watts, MemoryUsedBytes: &used, ECCUncorrected: &none, Throttle: []string{"power cap"}},
		{UUID: "GPU-b", Index: 1, Status: admin.Unknown, Utilisation: &busy},
	}
	answer := httptest.NewRecorder()
	Metrics(func() admin.Status { return status }, r).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	body := answer.Body.String()
	if answer.Code != 200 {
		t.Fatalf("got %d: %s", answer.Code, body)
	}
	for _, want := range []string{
		"dflash_runner_step 12\n", "dflash_runner_rows_committed_total 96\n", "dflash_runner_loss 2.25\n",
		`dflash_runner_state{state="training"} 1`,
		`dflash_runner_worker_state{worker="drafter/1",role="drafter",device="a \"b\" \\ \n",state="ready"} 1`,
		`dflash_runner_worker_resident_bytes{worker="drafter/1"} 1.048576e+06`,
		`dflash_runner_device_status{gpu="GPU-a",index="0",status="healthy"} 1`,
		`dflash_runner_device_status{gpu="GPU-b",index="1",status="unknown"} 1`,
		`dflash_runner_device_utilisation_ratio{gpu="GPU-a",index="0"} 0.97`,
		`dflash_runner_device_power_watts{gpu="GPU-a",index="0"} 650.5`,
		`dflash_runner_device_memory_used_bytes{gpu="GPU-a",index="0"} 1.073741824e+09`,
		`dflash_runner_device_ecc_uncorrected{gpu="GPU-a",index="0"} 0`,
		`dflash_runner_device_throttled{gpu="GPU-a",index="0",reason="power cap"} 1`,
		`dflash_runner_slots{arena="0",worker="target/0",kind="memfd",state="full"} 2`,
		`dflash_runner_hand_offs_total{arena="0",worker="target/0",kind="memfd"} 5`,
		`dflash_runner_events_total{level="warn",event="step aborted"} 2`,
		"# TYPE dflash_runner_events_lost_total counter\ndflash_runner_events_lost_total 0\n",
		"# HELP dflash_runner_slots Slots by state.\n# TYPE dflash_runner_slots gauge\n", "dflash_runner_supervisor_heap_bytes ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	if n := strings.Count(body, "# TYPE dflash_runner_slots "); n != 1 {
		t.Errorf("got %d types of one metric, want 1", n)
	}
	if strings.Contains(body, `utilisation_ratio{gpu="GPU-b"`) || strings.Contains(body, "device_temperature") {
		t.Error("a GPU's figure that is not known now is given")
	}
	if strings.Contains(body, "acceptance_length") {
		t.Error("a figure that is not known is given")
	}
}
