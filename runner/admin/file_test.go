package admin

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestNames: the names that others build on (README, "JSON that others build
// on"). Fields may be added, never taken away.
func TestNames(t *testing.T) {
	for name, c := range map[string]struct {
		v    any
		want string
	}{
		"status": {Status{}, "name state step steps_total epoch rows_committed loss tokens_per_s acceptance workers devices gate arenas failures"},
		"device": {DeviceStatus{}, "uuid index name status detail at utilisation memory_used_bytes memory_total_bytes power_w power_limit_w temperature_c " +
			"ecc_corrected ecc_uncorrected throttle recovery_action processes process_count"},
		"worker":     {WorkerStatus{Name: runner.Worker{Role: runner.Target}}, "name role pid generation state device order since_ms rss_bytes certificate"},
		"gate":       {GateStatus{}, "width holder queue"},
		"queued":     {Queued{Worker: runner.Worker{Role: runner.Target}}, "worker waited_ms"},
		"arena":      {ArenaStatus{Worker: runner.Worker{Role: runner.Target}}, "worker kind slots"},
		"slot":       {SlotStatus{}, "state version holder"},
		"failure":    {runner.Failure{Worker: runner.Worker{Role: runner.Target}}, "worker generation cause message hint at"},
		"health":     {Health{}, "status checks"},
		"check":      {Check{}, "name status detail"},
		"sum worker": {SummaryWorker{Name: runner.Worker{Role: runner.Target}}, "name role device generations certificate"},
		"sum cert":   {SummaryCertificate{}, "attention buckets graphs dense_calls second_pass_compiles seconds cache peak_bytes"},
		"sum gate":   {SummaryGate{}, "width max_holders sequence"},
		"sum arena":  {SummaryArena{}, "kind slots bytes hand_offs"},
		"summary": {Summary{}, "steps rows samples tokens loss_first loss_last acceptance_before acceptance_after acceptance_nonlooping " +
			"looping_share target_top1 prompts lossless speedup tokens_per_s workers gate arenas exit"},
	} {
		text, err := json.Marshal(c.v)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		for _, field := range strings.Fields(c.want) {
			if _, ok := got[field]; !ok {
				t.Errorf("%s: no field %q in %s", name, field, text)
			}
		}
	}
}

// TestListsAreNeverNull: jq scripts may iterate without asking.
func TestListsAreNeverNull(t *testing.T) {
	for _, v := range []any{Status{Arenas: []ArenaStatus{{Worker: runner.Worker{Role: runner.Target}}}}, Summary{}} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for i := range reflect.TypeOf(v).NumField() {
			f := reflect.TypeOf(v).Field(i)
			if f.Type.Kind() == reflect.Slice && strings.Contains(string(text), `"`+f.Tag.Get("json")+`":null`) {
				t.Errorf("%T: %s is null", v, f.Name)
			}
		}
		if strings.Contains(string(text), `"slots":null`) {
			t.Errorf("slots is null: %s", text)
		}
	}
}

// live is a status that this process would write.
func live(t *testing.T) Status {
	t.Helper()
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	return Status{Name: "r", State: Training, Step: 3, Process: self}
}

func TestReadStatusTellsLost(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	dead, err := identify(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if dead.Look() != Alive {
		t.Errorf("want a living child, got %v", dead.Look())
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	ended := 0
	reused, otherBoot, elsewhere := live(t).Process, live(t).Process, live(t).Process
	reused.StartTicks++
	otherBoot.BootID = "x"
	elsewhere.Namespace = "pid:[1]"
	for name, c := range map[string]struct {
		process Process
		state   State
		want    State
	}{
		"alive":                {live(t).Process, Training, Training},
		"killed":               {dead, Training, Lost},
		"pid used again":       {reused, Starting, Lost},
		"machine went down":    {otherBoot, Training, Lost},
		"in another container": {elsewhere, Training, Training},
		"never identified":     {Process{}, Training, Lost},
		"ended":                {dead, Ended, Ended},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := WriteStatus(dir, Status{State: c.state, Process: c.process, Exit: &ended}); err != nil {
				t.Fatal(err)
			}
			s, err := ReadStatus(dir)
			if err != nil || s.State != c.want {
				t.Errorf("want %s, got %s, %v", c.want, s.State, err)
			}
		})
	}
}

func TestWriteReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	for step := range 5 {
		s := live(t)
		s.Step = runner.Step(step)
		if err := WriteStatus(dir, s); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadStatus(dir); err != nil || got.Step != s.Step {
			t.Errorf("want step %d, got %d, %v", step, got.Step, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	hidden, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) != 1 || slices.ContainsFunc(hidden, func(f string) bool { return strings.Contains(f, StatusFile) }) {
		t.Errorf("want status.json alone, got %v %v", left, hidden)
	}
	if err := WriteStatus(filepath.Join(dir, "no"), live(t)); runner.KindOf(err) != runner.Unavailable {
		t.Errorf("missing directory: got %v", err)
	}
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadSummary(dir); runner.KindOf(err) != runner.NotFound {
		t.Errorf("missing: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, SummaryFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSummary(dir); runner.KindOf(err) != runner.Invalid {
		t.Errorf("torn: got %v", err)
	}
}

// TestEndBesideReading: a run that writes its end and goes while its status is
// read has ended; one that goes without is lost.
func TestEndBesideReading(t *testing.T) {
	for want, wrote := range map[State]string{Ended: `{"state": "ended"}`, Lost: `{"state": "stopping"}`} {
		dir := t.TempDir()
		put := func(text string) {
			if err := os.WriteFile(filepath.Join(dir, StatusFile), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		put(`{"state": "training"}`)
		s, err := readStatus(dir, func(Process) Life { put(wrote); return Dead })
		if err != nil || s.State != want {
			t.Errorf("it wrote %s: got %s, %v, want %s", wrote, s.State, err, want)
		}
	}
}
