package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const good = `{"devices": [{"uuid": "GPU-a", "error": null, "name": "H200", "utilisation": 97, "memory_used_bytes": 10, "memory_total_bytes": 20,
 "power_w": 650.5, "power_limit_w": 700, "temperature_c": 61, "ecc_corrected": 4, "ecc_uncorrected": 2, "throttle": ["power cap"],
 "recovery_action": "none", "processes": [{"pid": 7, "memory_bytes": null}], "process_count": 1}]}`

func TestParse(t *testing.T) {
	uuids := []string{"GPU-a"}
	l, err := parse([]byte(good), uuids)
	if err != nil || *l.Devices[0].Utilisation != 97 || l.Devices[0].Processes[0].Pid != 7 || l.Devices[0].Processes[0].MemoryBytes != nil {
		t.Fatalf("got %+v, %v", l, err)
	}
	if l, err := parse([]byte(`{"error": "no\ndriver", "hint": "`+strings.Repeat("x", 500)+`"}`), uuids); err != nil || l.Error != "no driver" || len(l.Hint) > maxText+3 {
		t.Errorf("an error: got %+v, %v", l, err)
	}
	if l, err := parse([]byte(`{"devices": [{"uuid": "GPU-a", "error": "lost\u001b[31m"}]}`), uuids); err != nil || *l.Devices[0].Error != "lost [31m" {
		t.Errorf("a device's error: got %+v, %v", l, err)
	}
	for name, c := range map[string][2]string{
		"nothing":            {"", "want one JSON object"},
		"words":              {"Driver/library version mismatch", "want one JSON object"},
		"two on a line":      {good + good, "got more"},
		"an unknown field":   {`{"devices": [], "x": 1}`, "unknown field"},
		"no devices":         {`{"devices": []}`, "want 1 devices, got 0"},
		"null":               {`null`, "want 1 devices, got 0"},
		"another GPU":        {`{"devices": [{"uuid": "GPU-b"}]}`, "want GPU-a, got GPU-b"},
		"too much":           {strings.Replace(good, `"utilisation": 97`, `"utilisation": 101`, 1), "utilisation: want 0 to 100, got 101"},
		"colder than cold":   {strings.Replace(good, `"temperature_c": 61`, `"temperature_c": -300`, 1), "temperature_c"},
		"more than there is": {strings.Replace(good, `"memory_used_bytes": 10`, `"memory_used_bytes": 21`, 1), "memory_used_bytes: want at most 20, got 21"},
		"a negative count":   {strings.Replace(good, `"ecc_corrected": 4`, `"ecc_corrected": -1`, 1), "want one JSON object"},
		"no number":          {strings.Replace(good, `"power_w": 650.5`, `"power_w": NaN`, 1), "want one JSON object"},
		"a crowd":            {strings.Replace(good, `{"pid": 7, "memory_bytes": null}`, strings.Repeat(`{"pid": 7, "memory_bytes": null},`, 64)+`{"pid": 7, "memory_bytes": null}`, 1), "want at most 64 processes"},
	} {
		if _, err := parse([]byte(c[0]), uuids); runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: want %q, got %v", name, c[1], err)
		}
	}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		change [2]string // of the good line
		first  uint64
		want   admin.Grade
		detail string
		unfit  bool
	}{
		"well":              {[2]string{"", ""}, 2, admin.Healthy, "", false},
		"new errors":        {[2]string{"", ""}, 1, admin.Degraded, "1 uncorrected errors of its memory since the run began", true},
		"too hot":           {[2]string{`"power cap"`, `"power cap", "thermal, by hardware"`}, 2, admin.Degraded, "slowed down: thermal, by hardware", false},
		"to be reset":       {[2]string{`"none"`, `"gpu reset"`}, 0, admin.Critical, "the driver asks for: gpu reset", true},
		"to be drained":     {[2]string{`"none"`, `"drain p2p"`}, 2, admin.Degraded, "drain p2p", false},
		"an unknown action": {[2]string{`"none"`, `"action 99"`}, 2, admin.Critical, "action 99", true},
		"an old driver":     {[2]string{`"none"`, `null`}, 2, admin.Healthy, "", false},
		"no ECC":            {[2]string{`"ecc_uncorrected": 2`, `"ecc_uncorrected": null`}, 0, admin.Healthy, "", false},
		"lost":              {[2]string{`"error": null`, `"error": "GPU is lost"`}, 2, admin.Unknown, "GPU is lost", true},
		"does not answer":   {[2]string{`"error": null`, `"error": "Timeout"`}, 2, admin.Unknown, "Timeout", false},
	} {
		l, err := parse([]byte(strings.Replace(good, c.change[0], c.change[1], 1)), []string{"GPU-a"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := judge(GPU{"GPU-a", 3, "H200"}, l.Devices[0], time.Unix(5, 0), c.first)
		if s.Status != c.want || !strings.Contains(s.Detail, c.detail) || c.detail == "" && s.Detail != "" || s.Index != 3 {
			t.Errorf("%s: want %s %q, got %s %q", name, c.want, c.detail, s.Status, s.Detail)
		}
		if why := unfit(l.Devices[0], c.first); (why != "") != c.unfit || !strings.Contains(why, c.detail) && c.unfit {
			t.Errorf("%s: unfit for %q, want %v", name, why, c.unfit)
		}
	}
}

// child is what Run is in these tests: it does as it is told, and counts.
type child struct {
	told chan func(ctx context.Context, onLine func([]byte)) error // one for each start

	mu   sync.Mutex // guards said
	said []string
}

func (c *child) run(ctx context.Context, onLine func([]byte)) error {
	select {
	case f := <-c.told:
		return f(ctx, onLine)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *child) tell(_ runner.Level, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, message)
}

func (c *child) heard() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.said, "\n")
}

// watching starts a watch of one GPU; it is closed at the test's end.
func watching(t *testing.T, deadline time.Duration) (*Watch, *child) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &child{told: make(chan func(context.Context, func([]byte)) error)}
	w := Start(ctx, Config{GPUs: []GPU{{"GPU-a", 0, "H200"}}, Run: c.run, First: deadline, Deadline: deadline, BackoffMin: time.Millisecond, BackoffMax: 4 * time.Millisecond, Lived: time.Hour, Tell: c.tell})
	t.Cleanup(func() {
		cancel()
		if err := w.Close(10 * time.Second); err != nil {
			t.Error(err)
		}
	})
	return w, c
}

// until waits until the GPU is told so.
func until(t *testing.T, w *Watch, want admin.Grade, detail string) admin.DeviceStatus {
	t.Helper()
	limit := time.Now().Add(10 * time.Second)
	for {
		d := w.Devices(time.Now())[0]
		if d.Status == want && strings.Contains(d.Detail, detail) {
			return d
		}
		if time.Now().After(limit) {
			t.Fatalf("want %s %q, got %s %q", want, detail, d.Status, d.Detail)
		}
		time.Sleep(time.Millisecond) // between looks
	}
}

// hears waits until what was told is as it should be: a state is seen before its
// message is, so what was not told yet may still be.
func hears(t *testing.T, c *child, what string, enough func(said string) bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !enough(c.heard()); time.Sleep(time.Millisecond) { // between looks
		if time.Now().After(limit) {
			t.Fatalf("want it to tell of %s, told %q", what, c.heard())
		}
	}
}

// TestASampleAges: what was well a while ago is unknown now, with what was
// known last beside it.
func TestASampleAges(t *testing.T) {
	w, c := watching(t, time.Minute)
	if d := w.Devices(time.Now())[0]; d.Status != admin.Unknown || d.Detail != "no sample yet" || d.UUID != "GPU-a" || d.At != nil {
		t.Errorf("at first: got %+v", d)
	}
	c.told <- func(ctx context.Context, onLine func([]byte)) error {
		onLine([]byte(good))
		<-ctx.Done()
		return ctx.Err()
	}
	d := until(t, w, admin.Healthy, "")
	if *d.Utilisation != 97 || *d.PowerW != 650.5 || d.Throttle[0] != "power cap" || *d.RecoveryAction != "none" {
		t.Errorf("got %+v", d)
	}
	late := w.Devices(d.At.Add(61 * time.Second))[0]
	if late.Status != admin.Unknown || late.Detail != "no sample for 1m1s" || *late.Utilisation != 97 {
		t.Errorf("a minute later: got %+v", late)
	}
	if still := w.Devices(d.At.Add(59 * time.Second))[0]; still.Status != admin.Healthy {
		t.Errorf("a second earlier: got %+v", still)
	}
}

// TestUnfitIsToldOnce: of a GPU that must not be used again its user hears
// once, however often it is seen.
func TestUnfitIsToldOnce(t *testing.T) {
	var told []string
	w := &Watch{c: Config{GPUs: []GPU{{"GPU-a", 3, "H200"}}, Tell: func(runner.Level, string) {}, Unfit: func(uuid, why string) { told = append(told, uuid+" "+why) }},
		errors: map[string]uint64{}, barred: map[string]bool{}, newest: make([]admin.DeviceStatus, 1)}
	for _, line := range []string{good, strings.Replace(good, `"none"`, `"gpu reset"`, 1), strings.Replace(good, `"none"`, `"node reboot"`, 1)} {
		l, err := parse([]byte(line), []string{"GPU-a"})
		if err != nil {
			t.Fatal(err)
		}
		w.take(l, time.Unix(5, 0))
	}
	if len(told) != 1 || told[0] != "GPU-a GPU 3: the driver asks for: gpu reset" {
		t.Errorf("told %q", told)
	}
}

// TestEachEnd: whatever ends the child, the GPU is unknown with the reason, and
// the next child is believed.
func TestEachEnd(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(ctx context.Context, onLine func([]byte)) error
		want string
	}{
		"it hangs":           {func(ctx context.Context, _ func([]byte)) error { <-ctx.Done(); return ctx.Err() }, "no answer in time (a GPU or its driver may hang"},
		"it hangs after one": {func(ctx context.Context, f func([]byte)) error { f([]byte(good)); <-ctx.Done(); return ctx.Err() }, "no answer in time"},
		"it prints garbage":  {func(ctx context.Context, f func([]byte)) error { f([]byte("hello")); <-ctx.Done(); return ctx.Err() }, "read sample: want one JSON object"},
		"it dies":            {func(context.Context, func([]byte)) error { return errors.New("killed by SIGSEGV") }, "killed by SIGSEGV"},
		"it ends":            {func(context.Context, func([]byte)) error { return nil }, "ended by itself"},
		"it says why": {func(_ context.Context, f func([]byte)) error {
			f([]byte(`{"error": "no pynvml", "hint": "install it"}`))
			return errors.New("exit 3")
		}, "no pynvml (install it)"},
		"garbage, then lines": {func(ctx context.Context, f func([]byte)) error {
			f([]byte("x"))
			f([]byte(good))
			<-ctx.Done()
			return ctx.Err()
		}, "want one JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			w, ch := watching(t, 50*time.Millisecond)
			ch.told <- c.run
			until(t, w, admin.Unknown, c.want)
			hears(t, ch, "the child's end", func(said string) bool { return strings.Contains(said, "GPUs are not watched: ") })
			well := func(ctx context.Context, onLine func([]byte)) error {
				for ctx.Err() == nil {
					onLine([]byte(good))
					time.Sleep(5 * time.Millisecond) // as a child does
				}
				return ctx.Err()
			}
			go func() { // ends with the test: on a busy machine a child may be late and be followed by another
				for {
					select {
					case ch.told <- well:
					case <-t.Context().Done():
						return
					}
				}
			}()
			until(t, w, admin.Healthy, "")
			hears(t, ch, "the new child's first sample", func(said string) bool { return strings.HasSuffix(said, "GPUs are watched") })
			if w.Starts() < 2 {
				t.Errorf("want a second child, got %d starts", w.Starts())
			}
		})
	}
}

// TestGarbageIsNotWaitedOut: a child that prints something else is ended at once.
func TestGarbageIsNotWaitedOut(t *testing.T) {
	w, c := watching(t, time.Hour)
	c.told <- func(ctx context.Context, f func([]byte)) error { f([]byte("hello")); <-ctx.Done(); return ctx.Err() }
	until(t, w, admin.Unknown, "want one JSON object")
}

// TestTheSameEndIsToldOnce: a library that is missing is missing every time.
func TestTheSameEndIsToldOnce(t *testing.T) {
	w, c := watching(t, time.Minute)
	for range 5 {
		c.told <- func(context.Context, func([]byte)) error { return errors.New("no library") }
	}
	until(t, w, admin.Unknown, "no library")
	if n := strings.Count(c.heard(), "no library"); n != 1 {
		t.Errorf("want it told once, got %d times", n)
	}
}

// TestStuck: a child that not even SIGKILL ends makes its GPUs unknown, gets no
// second child beside it, and does not hold up the end.
func TestStuck(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	stuck, started := make(chan struct{}), make(chan struct{}, 9)
	w := Start(ctx, Config{GPUs: []GPU{{"GPU-a", 0, "H200"}}, First: 20 * time.Millisecond, Deadline: 20 * time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond, Lived: time.Hour,
		Tell: func(runner.Level, string) {}, Run: func(_ context.Context, f func([]byte)) error {
			started <- struct{}{}
			f([]byte(good))
			<-stuck
			return nil
		}})
	<-started
	until(t, w, admin.Unknown, "the probe is being ended")
	cancel()
	if err := w.Close(30 * time.Millisecond); runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), "survives SIGKILL") {
		t.Errorf("got %v", err)
	}
	if n := w.Starts(); n != 1 {
		t.Errorf("want one child, got %d", n)
	}
	close(stuck)
	if err := w.Close(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestBackoff: waits double up to the most, and start anew after a long life.
func TestBackoff(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex // guards at
	var at []time.Time
	w := Start(ctx, Config{GPUs: []GPU{{"GPU-a", 0, "H200"}}, First: time.Minute, Deadline: time.Minute, BackoffMin: 20 * time.Millisecond, BackoffMax: 80 * time.Millisecond, Lived: time.Hour,
		Tell: func(runner.Level, string) {}, Run: func(context.Context, func([]byte)) error {
			mu.Lock()
			defer mu.Unlock()
			if at = append(at, time.Now()); len(at) == 6 {
				cancel()
			}
			return fmt.Errorf("end %d", len(at))
		}})
	if err := w.Close(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	for i, least := range []time.Duration{20, 40, 80, 80, 80} {
		if got := at[i+1].Sub(at[i]); got < least*time.Millisecond {
			t.Errorf("wait %d: want %d ms at least, got %v", i, least, got)
		}
	}
}
