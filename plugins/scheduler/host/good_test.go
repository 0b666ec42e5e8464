package host

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

func TestGoodPluginAnswersEverything(t *testing.T) {
	o := options(t)
	p := started(t, "prints-first", o) // a banner before the handshake is passed over
	got, err := p.Arrange(t.Context(), ask())
	if err != nil || !slices.Equal(got, []runner.Sample{12, 11, 10}) {
		t.Errorf("arrange: got %v, %v", got, err)
	}
	free := []runner.Worker{{Role: runner.Target}, {Role: runner.Target, Rank: 1}}
	if w, err := p.Assign(t.Context(), scheduler.AssignRequest{Row: 1, Free: free}); err != nil || w != free[1] {
		t.Errorf("assign: got %v, %v", w, err)
	}
	place := scheduler.PlaceRequest{Devices: []scheduler.Device{{ID: "a", FreeBytes: 10}, {ID: "b", FreeBytes: 10, Links: []scheduler.Link{{ID: "a", Peer: true}}}},
		Needs: []scheduler.Need{{Worker: free[0], MemoryBytes: 5}, {Worker: free[1], MemoryBytes: 5}}}
	if out, err := p.Place(t.Context(), place); err != nil || len(out) != 2 || out[1].Device != "b" {
		t.Errorf("place: got %v, %v", out, err)
	}
	if v, err := p.OnFailure(t.Context(), scheduler.FailureRequest{Worker: free[0], Device: "a", Cause: runner.CauseKilled, Deaths: 1, Budget: 3}); err != nil || v.Decision != scheduler.Restart {
		t.Errorf("on failure: got %v, %v", v, err)
	}
	s := p.State()
	if s.Name != "good" || s.Version != "1.2.3" || s.APIVersion != 1 || len(s.Capabilities) != 5 || s.Calls != 4 || s.Refused != 0 || s.Pid == 0 {
		t.Errorf("state %+v", s)
	}
	if text := readLog(t, o); !strings.Contains(text, "FancyScheduler") {
		t.Errorf("the banner is not in the log: %q", text)
	}
}

// TestPluginSeesNothingOfTheHost: neither its variables, but those allowed, nor
// its files and sockets.
func TestPluginSeesNothingOfTheHost(t *testing.T) {
	secret, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	o := options(t)
	o.Environ = []string{"LANG=C", "TOKEN=x"}
	e := entry(t, "reveals")
	e.Env = []string{"LANG"}
	p, err := Start(t.Context(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, said, ok := strings.Cut(awaitLog(t, o, "revealed "), "revealed ")
	if !ok {
		t.Fatal("it did not reveal")
	}
	said, _, _ = strings.Cut(said, "\n")
	for _, word := range strings.Fields(said) {
		switch {
		case word == "LANG", word == "DFLASH_NONCE", word == "DFLASH_RUNNER_SCHEDULER", strings.HasPrefix(word, "PLUGIN_"):
		case strings.HasPrefix(word, "pipe:"), strings.HasPrefix(word, "socket:"), strings.HasPrefix(word, "anon_inode:"), word == "/dev/null",
			strings.HasPrefix(word, "/proc/"), word == "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", strings.HasPrefix(word, "/sys/fs/cgroup"):
		default:
			t.Errorf("it sees %q", word)
		}
	}
	if !strings.Contains(said, "LANG") || strings.Contains(said, "TOKEN") {
		t.Errorf("the allow-list: %q", said)
	}
}

// TestEventsArrive: what is observed comes, in order.
func TestEventsArrive(t *testing.T) {
	o := options(t)
	p := started(t, "good", o)
	w := runner.Worker{Role: runner.Drafter}
	p.Observe(scheduler.Event{Number: 1, At: time.Now(), Name: "step decided", Worker: &w})
	p.Observe(scheduler.Event{Number: 2, At: time.Now(), Name: "worker died"})
	text := awaitLog(t, o, "observed 2")
	if first := strings.Index(text, "observed 1 step decided"); first < 0 || first > strings.Index(text, "observed 2 worker died") {
		t.Errorf("got %q", text)
	}
}

// TestEventsAtTheEnd: what waits is told before the plugin is stopped, in order,
// also text that is not UTF-8, which messages cannot carry.
func TestEventsAtTheEnd(t *testing.T) {
	o := options(t)
	p := started(t, "good", o)
	for n := range uint64(queueRoom) {
		p.Observe(scheduler.Event{Number: n + 1, At: time.Now(), Name: "worker died\xff", Message: "a line of \xfe stderr"})
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	text, at := readLog(t, o), 0
	for n := range queueRoom {
		next := strings.Index(text[at:], fmt.Sprintf("observed %d worker died?", n+1))
		if next < 0 {
			t.Fatalf("event %d of %d was not told, or too early", n+1, queueRoom)
		}
		at += next
	}
}

// TestDeathOfStrangeText: a message that is not UTF-8 is asked about all the same.
func TestDeathOfStrangeText(t *testing.T) {
	p := started(t, "good", options(t))
	if _, err := p.OnFailure(t.Context(), scheduler.FailureRequest{Worker: runner.Worker{Role: runner.Target}, Message: "bytes \xfe", Deaths: 1, Budget: 3}); err != nil {
		t.Error(err)
	}
}

// TestJudgeVerdict: what may not be said of a death.
func TestJudgeVerdict(t *testing.T) {
	q := scheduler.FailureRequest{Device: "x", Devices: []scheduler.Device{{ID: "y"}, {ID: "z", Health: "critical"}}}
	for _, c := range []struct {
		v    scheduler.Verdict
		says string
	}{
		{scheduler.Verdict{Decision: scheduler.Restart}, ""},
		{scheduler.Verdict{Decision: scheduler.Stop, Reason: strings.Repeat("r", maxReason)}, ""},
		{scheduler.Verdict{Decision: scheduler.Replace, Device: "y"}, ""},
		{scheduler.Verdict{Decision: scheduler.Replace, Device: "x"}, "want another device that works, got \"x\""},
		{scheduler.Verdict{Decision: scheduler.Replace, Device: "z"}, "want another device that works"},
		{scheduler.Verdict{Decision: scheduler.Replace}, "want another device that works"},
		{scheduler.Verdict{Decision: "bury"}, "want restart, replace or stop"},
		{scheduler.Verdict{Decision: scheduler.Stop, Reason: "two\nlines"}, "one line"},
		{scheduler.Verdict{Decision: scheduler.Stop, Reason: strings.Repeat("r", maxReason+1)}, "at most 500 bytes, got 501"},
	} {
		err := JudgeVerdict(q, c.v)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.60v: got %v, want %q", c.v, err, c.says)
		}
	}
}

// awaitLog waits until the plugin's log holds a text.
func awaitLog(t *testing.T, o Options, text string) string {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); ; {
		if got := readLog(t, o); strings.Contains(got, text) {
			return got
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("the log lacks %q: %q", text, readLog(t, o))
		}
	}
}

// TestMutualTLS: the plugin refuses who has not the host's certificate.
func TestMutualTLS(t *testing.T) {
	p := started(t, "good", options(t))
	conn, err := p.process.hosted.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stranger := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	err = stranger.Handshake()
	if err == nil { // TLS 1.3 tells a client of the refusal when it reads
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = stranger.Read(make([]byte, 1))
	}
	var timeout net.Error
	if err == nil || asTimeout(err, &timeout) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a stranger got %v", err)
	}
	if c := p.process.client; c == nil || p.process.version != scheduler.APIVersion {
		t.Error("the host itself is not served")
	}
}

func asTimeout(err error, into *net.Error) bool {
	e, ok := err.(net.Error)
	*into = e
	return ok && e.Timeout()
}

func TestDescribe(t *testing.T) {
	d, err := Describe(t.Context(), entry(t, "good"), options(t))
	if err != nil || d.Name != "good" || len(d.Config) != 2 || d.Config[0].Key != "depth" || d.Config[0].Default != int64(4) || *d.Config[0].Max != 9 || len(d.Capabilities) != 5 {
		t.Errorf("got %+v, %v", d, err)
	}
}

// TestJudgePlace: what a placement may not do.
func TestJudgePlace(t *testing.T) {
	a, b, c := runner.Worker{Role: runner.Target}, runner.Worker{Role: runner.Drafter}, runner.Worker{Role: runner.Drafter, Rank: 1}
	needs := []scheduler.Need{{Worker: a, MemoryBytes: 6}, {Worker: b, MemoryBytes: 6}, {Worker: c, MemoryBytes: 2}}
	q := scheduler.PlaceRequest{Devices: []scheduler.Device{{ID: "x", FreeBytes: 10}, {ID: "y", FreeBytes: 10}, {ID: "z", FreeBytes: 10, Health: "critical"}}}
	for _, c := range []struct {
		on       []scheduler.Placement
		colocate bool
		says     string
	}{
		{[]scheduler.Placement{put(a, "x"), put(b, "y")}, false, ""},
		{[]scheduler.Placement{put(a, "x")}, false, "want 2 placements"},
		{[]scheduler.Placement{put(a, "x"), put(a, "y")}, false, "placed twice"},
		{[]scheduler.Placement{put(a, "x"), put(b, "w")}, false, "unknown device"},
		{[]scheduler.Placement{put(a, "x"), put(b, "z")}, false, "does not work"},
		{[]scheduler.Placement{put(a, "x"), put(b, "x")}, false, "do not share"},
		{[]scheduler.Placement{put(a, "x"), put(b, "x")}, true, "want 6 bytes, got 4 of 10"},
		{[]scheduler.Placement{put(a, "x"), put(runner.Worker{Role: "cook"}, "y")}, false, "not of this run"},
		{[]scheduler.Placement{put(a, "x"), put(b, "y"), put(c, "y")}, true, "two drafters of one GPU"},
	} {
		q.Colocate = c.colocate
		q.Needs = needs[:max(2, len(c.on))]
		err := JudgePlace(q, c.on)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: got %v, want %q", c.on, err, c.says)
		}
	}
}

func put(w runner.Worker, device string) scheduler.Placement {
	return scheduler.Placement{Worker: w, Device: device}
}
