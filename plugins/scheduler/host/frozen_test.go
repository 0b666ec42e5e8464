package host

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// testdata/api1.txt is what a host and a plugin of API version 1 said when that
// version was made: a line for each message, its method, "ask" or "reply", and
// its bytes. It is never written again. A change after which one of these tests
// fails breaks plugins that people have.

// frozenQuestions are what the transcript's host asked.
type frozenQuestions struct {
	arrange scheduler.ArrangeRequest
	assign  scheduler.AssignRequest
	place   scheduler.PlaceRequest
	failure scheduler.FailureRequest
	event   scheduler.Event
}

func frozen() (q frozenQuestions) {
	loss, ms := 2.25, 154.5
	target, drafter := runner.Worker{Role: runner.Target, Rank: 1}, runner.Worker{Role: runner.Drafter}
	q.arrange = scheduler.ArrangeRequest{Epoch: 2, Count: 3, Left: 300, Total: 1000, Sources: []scheduler.Source{{Name: "chat", Loss: &loss}, {Name: "code"}},
		Pool: []scheduler.Candidate{{Sample: 7, Tokens: 300, Supervised: 200, Anchors: 100, Source: 1}, {Sample: 70_000, Tokens: 16, Supervised: 8, Anchors: 7},
			{Sample: 9, Tokens: 20, Supervised: 10, Anchors: 9}, {Sample: 7, Tokens: 300, Supervised: 200, Anchors: 100, Source: 1}}}
	q.assign = scheduler.AssignRequest{Row: 41, Bucket: 3072, Tokens: 2900, Free: []runner.Worker{{Role: runner.Target}, target}}
	devices := []scheduler.Device{{ID: "GPU-a", Name: "H200", MemoryBytes: 140 << 30, FreeBytes: 139 << 30, Health: "healthy", Node: 1, NUMA: 1,
		Links: []scheduler.Link{{ID: "GPU-b", GBPerS: 331.5, Peer: true}}}, {ID: "GPU-b", Name: "H200", MemoryBytes: 140 << 30, FreeBytes: 120 << 30, Health: "degraded"}}
	q.place = scheduler.PlaceRequest{Devices: devices, Colocate: true, Needs: []scheduler.Need{{Worker: target, MemoryBytes: 20 << 30, RowMS: &ms}, {Worker: drafter, MemoryBytes: 30 << 30}}}
	q.failure = scheduler.FailureRequest{Worker: drafter, Device: "GPU-a", Cause: runner.CauseCUDA, Message: "an error of the device", Deaths: 2, Budget: 3, Devices: devices}
	q.event = scheduler.Event{Number: 5, At: time.UnixMilli(1_764_504_000_123), Level: runner.Warn, Name: "worker died", Message: "drafter/0", Worker: &drafter, Step: 12, Row: 40}
	return q
}

// parseTranscript gives what was said, by method and "ask" or "reply".
func parseTranscript(text string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) < 2 || len(fields) > 3 {
			return nil, fmt.Errorf("want a method, a side and bytes, got %q", line)
		}
		raw, err := hex.DecodeString(strings.Join(fields[2:], ""))
		if err != nil {
			return nil, err
		}
		all[fields[0]+" "+fields[1]] = raw
	}
	return all, nil
}

// transcript reads what was said.
func transcript(t *testing.T) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "api1.txt"))
	if err != nil {
		t.Fatal(err)
	}
	said, err := parseTranscript(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// old is this binary as the plugin of the transcript.
func old(t *testing.T, args ...string) Entry {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "api1.txt"))
	if err != nil {
		t.Fatal(err)
	}
	e := entry(t, "old")
	e.Name, e.Args = "elder", append([]string{"plugin", "old", string(text)}, args...)
	e.Config = map[string]any{"depth": int64(5)}
	return e
}

// TestOldPluginKeepsWorking replays the transcript against this host: what it
// asks holds all that the old plugin looks at, and the old answers are taken.
func TestOldPluginKeepsWorking(t *testing.T) {
	o, q := options(t), frozen()
	o.Seed = 7
	p, err := Start(t.Context(), old(t), o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	answersAsOfOld(t, p, q)
	p.Observe(q.event)
	if text := awaitLog(t, o, "observed "); !strings.Contains(text, "observed well") {
		t.Errorf("observe: %s", text)
	}
}

// answersAsOfOld wants of a plugin what the transcript's said.
func answersAsOfOld(t *testing.T, p *Plugin, q frozenQuestions) {
	t.Helper()
	s := p.State()
	if want := []scheduler.Capability{scheduler.Arrange, scheduler.Assign, scheduler.Observe, scheduler.OnFailure, scheduler.Place}; s.Name != "elder" || s.Version != "0.9" || s.APIVersion != 1 || !slices.Equal(s.Capabilities, want) {
		t.Errorf("state %+v", s)
	}
	samples, err := p.Arrange(t.Context(), q.arrange)
	if want := []runner.Sample{70_000, 7, 7}; err != nil || !slices.Equal(samples, want) {
		t.Errorf("arrange: want %v, got %v, %v", want, samples, err)
	}
	if w, err := p.Assign(t.Context(), q.assign); err != nil || w != q.assign.Free[1] {
		t.Errorf("assign: got %v, %v", w, err)
	}
	placed, err := p.Place(t.Context(), q.place)
	if want := []scheduler.Placement{{Worker: q.place.Needs[0].Worker, Device: "GPU-a"}, {Worker: q.place.Needs[1].Worker, Device: "GPU-b"}}; err != nil || !slices.Equal(placed, want) {
		t.Errorf("place: want %v, got %v, %v", want, placed, err)
	}
	v, err := p.OnFailure(t.Context(), q.failure)
	if want := (scheduler.Verdict{Decision: scheduler.Replace, Device: "GPU-b", Reason: "it was hot"}); err != nil || v != want {
		t.Errorf("on failure: want %+v, got %+v, %v", want, v, err)
	}
}

// TestOldPluginIsDescribed: its schema is read as it was.
func TestOldPluginIsDescribed(t *testing.T) {
	d, err := Describe(t.Context(), old(t), options(t))
	if err != nil || len(d.Config) != 2 {
		t.Fatalf("got %+v, %v", d, err)
	}
	one, nine := 1.0, 9.0
	want := []Key{{Key: "depth", Type: "a whole number", Doc: "how deep", Default: int64(4), Min: &one, Max: &nine},
		{Key: "mode", Type: "a text", Doc: "which way", Default: "a", OneOf: []string{"a", "b"}}}
	if !reflect.DeepEqual(d.Config, want) {
		t.Errorf("want %+v, got %+v", want, d.Config)
	}
}

// TestAPIVersions: the highest version that both speak is used, whoever is
// newer; without one the plugin is refused with both sides' versions.
func TestAPIVersions(t *testing.T) {
	mine := apiVersions
	defer func() { apiVersions = mine }()
	for _, c := range []struct {
		host  []uint32
		says  string // the plugin's versions
		used  uint32
		error string
	}{
		{[]uint32{1}, "1", 1, ""},
		{[]uint32{1}, "3,2,1", 1, ""},     // a newer plugin
		{[]uint32{3, 2, 1}, "1", 1, ""},   // an older one
		{[]uint32{3, 2, 1}, "1,2", 2, ""}, // one in between
		{[]uint32{1}, "2,3", 0, "info: API version: want one of [1], got [2 3]"},
		{[]uint32{3, 2}, "1", 0, "info: API version: want one of [3 2], got [1]"},
		{[]uint32{1}, "none", 0, "info: API version: want one of [1], got []"},
	} {
		apiVersions = c.host
		p, err := Start(t.Context(), old(t, c.says), options(t))
		if err != nil {
			if c.error == "" || !strings.Contains(err.Error(), c.error) {
				t.Errorf("host %v, plugin %s: got %v, want %q", c.host, c.says, err, c.error)
			}
			continue
		}
		if got := p.State().APIVersion; got != c.used || c.error != "" {
			t.Errorf("host %v, plugin %s: got version %d, want %d%s", c.host, c.says, got, c.used, c.error)
		}
		if _, err := p.Arrange(context.WithoutCancel(t.Context()), frozen().arrange); err != nil {
			t.Errorf("host %v, plugin %s: arrange: %v", c.host, c.says, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOldHostIsAnswered gives the transcript's questions to a plugin of today's
// SDK: it answers each, and refuses a version that it does not speak.
func TestOldHostIsAnswered(t *testing.T) {
	said := transcript(t)
	p := started(t, "good", options(t))
	read := func(method string, into proto.Message) {
		if err := proto.Unmarshal(said[method+" ask"], into); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	var info schedulerv1.InfoRequest
	read("Info", &info)
	if got, err := p.process.ask.Info(t.Context(), &info); err != nil || !slices.Equal(got.GetApiVersions(), []uint32{1}) {
		t.Errorf("info: %v, %v", got, err)
	}
	var configure schedulerv1.ConfigureRequest
	read("Configure", &configure)
	if _, err := p.process.ask.Configure(t.Context(), &configure); err != nil {
		t.Errorf("configure: %v", err)
	}
	configure.ApiVersion = 2
	if _, err := p.process.ask.Configure(t.Context(), &configure); err == nil || !strings.Contains(err.Error(), "configure: want API version 1, got 2") {
		t.Errorf("configure: %v", err)
	}
	var arrange schedulerv1.ArrangeRequest
	read("Arrange", &arrange)
	if got, err := p.process.ask.Arrange(t.Context(), &arrange); err != nil || !slices.Equal(got.GetSamples(), []uint32{9, 70_000, 7}) {
		t.Errorf("arrange: %v, %v", got, err)
	}
	var assign schedulerv1.AssignRequest
	read("Assign", &assign)
	if got, err := p.process.ask.Assign(t.Context(), &assign); err != nil || got.GetTarget().GetRank() != 1 {
		t.Errorf("assign: %v, %v", got, err)
	}
	var place schedulerv1.PlaceRequest
	read("Place", &place)
	if got, err := p.process.ask.Place(t.Context(), &place); err != nil || len(got.GetPlacements()) != 2 {
		t.Errorf("place: %v, %v", got, err)
	}
	var failure schedulerv1.OnFailureRequest
	read("OnFailure", &failure)
	if got, err := p.process.ask.OnFailure(t.Context(), &failure); err != nil || got.GetDecision() != schedulerv1.Decision_DECISION_RESTART {
		t.Errorf("on failure: %v, %v", got, err)
	}
}
