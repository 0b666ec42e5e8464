package host

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// inOrder is the answer of a talker to ask.
var inOrder = []runner.Sample{10, 11, 12}

// talking starts a talker.
func talking(t *testing.T, which string, o Options) *Plugin {
	t.Helper()
	e := entry(t, "talker")
	e.Args = append(e.Args, which)
	p, err := Start(t.Context(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// opened says how many streams a talker had until now.
func opened(t *testing.T, p *Plugin) int {
	t.Helper()
	said, err := p.process.ask.Arrange(t.Context(), &schedulerv1.ArrangeRequest{})
	if err != nil || len(said.GetSamples()) != 1 {
		t.Fatalf("got %v, %v", said, err)
	}
	return int(said.Samples[0])
}

func arranges(t *testing.T, p *Plugin) {
	t.Helper()
	if got, err := p.Arrange(t.Context(), ask()); err != nil || !slices.Equal(got, inOrder) {
		t.Errorf("arrange: got %v, %v", got, err)
	}
}

func assigns(t *testing.T, p *Plugin) {
	t.Helper()
	free := []runner.Worker{{Role: runner.Target, Rank: 3}, {Role: runner.Target, Rank: 1}}
	if w, err := p.Assign(t.Context(), scheduler.AssignRequest{Row: 1, Free: free}); err != nil || w != free[0] {
		t.Errorf("assign: got %v, %v", w, err)
	}
}

// TestOneStreamForEachKind: all questions of a kind are asked on one stream.
func TestOneStreamForEachKind(t *testing.T) {
	p := talking(t, "good", options(t))
	for range 50 {
		arranges(t, p)
		assigns(t, p)
	}
	if s := p.State(); s.Calls != 100 || s.Refused != 0 {
		t.Errorf("state %+v", s)
	}
	if n := opened(t, p); n != 2 {
		t.Errorf("want 2 streams, got %d", n)
	}
}

// TestStreamsRules: who breaks one is refused with the reason, and a strike; the
// next question is asked on another stream.
func TestStreamsRules(t *testing.T) {
	for which, c := range map[string]struct {
		says    string
		kind    runner.Kind
		streams int // after two questions
	}{
		"another number": {"which is not asked", runner.Invalid, 2},
		"unasked":        {"got one to 1, which is not asked", runner.Invalid, 2},
		"another kind":   {"want a reply of the question's kind or a refusal, got an assignment", runner.Invalid, 2},
		"nothing":        {"want a reply of the question's kind or a refusal, got nothing", runner.Invalid, 2},
		"torn":           {"packed samples: want 4 bytes for each, got 7 bytes", runner.Invalid, 1}, // the stream keeps its rules
		"both forms":     {"want samples or packed ones, got 3 and 4 bytes", runner.Invalid, 1},
		"ends":           {"it ended the stream of questions", runner.Unavailable, 2},
		"fails":          {`"a broken stream"`, runner.Unavailable, 2},
		"refuses":        {`"no samples"`, runner.Exhausted, 1}, // that is its right
	} {
		t.Run(which, func(t *testing.T) {
			p := talking(t, which, options(t))
			for n := range 2 {
				_, err := p.Arrange(t.Context(), ask())
				s := p.State()
				if err == nil || !strings.Contains(err.Error(), "arrange: ") || !strings.Contains(err.Error(), c.says) || runner.KindOf(err) != c.kind || s.Strikes != n+1 || s.Last != err.Error() {
					t.Errorf("got %v of kind %v, state %+v", err, runner.KindOf(err), s)
				}
				if hint := runner.HintOf(err); (hint == "wait") != (which == "refuses") {
					t.Errorf("got hint %q", hint)
				}
			}
			if n := opened(t, p); n != c.streams {
				t.Errorf("want %d streams, got %d", c.streams, n)
			}
		})
	}
}

// TestTwoAnswers: the first is taken, the second refused at the next question.
func TestTwoAnswers(t *testing.T) {
	p := talking(t, "twice", options(t))
	arranges(t, p)
	if _, err := p.Arrange(t.Context(), ask()); err == nil || !strings.Contains(err.Error(), "which is not asked") || p.State().Strikes != 1 {
		t.Errorf("got %v, %+v", err, p.State())
	}
	arranges(t, p) // on another stream
}

// TestLateAnswerGoesNowhere: its stream is dropped, and the next question is
// answered on another.
func TestLateAnswerGoesNowhere(t *testing.T) {
	o := options(t)
	p := talking(t, "late", o)
	p.o.Call = 300 * time.Millisecond
	if _, err := p.Arrange(t.Context(), ask()); err == nil || !strings.Contains(err.Error(), "arrange: no answer within 300ms") || p.State().Strikes != 1 {
		t.Errorf("got %v, %+v", err, p.State())
	}
	p.o.Call = o.Call
	arranges(t, p)
	if n := opened(t, p); n != 2 {
		t.Errorf("want 2 streams, got %d", n)
	}
}

// TestSlowArrangeHoldsUpNothing: neither an assignment, nor another arrangement,
// which is asked by a call.
func TestSlowArrangeHoldsUpNothing(t *testing.T) {
	for which, other := range map[string]func(*testing.T, *Plugin){"slow": assigns, "taken": arranges} {
		t.Run(which, func(t *testing.T) {
			o := options(t)
			p := talking(t, which, o)
			answered := make(chan error, 1)
			go func() { // ends with the answer, which waits for the other question's
				_, err := p.Arrange(t.Context(), ask())
				answered <- err
			}()
			awaitLog(t, o, "opened")
			other(t, p)
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCloseEndsStreams: also one with a question.
func TestCloseEndsStreams(t *testing.T) {
	o := options(t)
	p := talking(t, "hangs", o)
	assigns(t, p)
	answered := make(chan error, 1)
	go func() { // ends with Close
		_, err := p.Arrange(t.Context(), ask())
		answered <- err
	}()
	awaitLog(t, o, "it hangs")
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-answered; err == nil || p.State().Strikes != 0 {
		t.Errorf("got %v, %+v", err, p.State())
	}
	if _, err := p.Arrange(t.Context(), ask()); !errors.Is(err, ErrAbsent) {
		t.Errorf("got %v", err)
	}
}

// TestPanicIsOneQuestionsError: on a stream and under a call; the plugin lives on.
func TestPanicIsOneQuestionsError(t *testing.T) {
	o := options(t)
	p := started(t, "panics", o)
	pid := p.State().Pid
	const says = "the plugin panicked: the loss is not known"
	if _, err := p.Arrange(t.Context(), ask()); err == nil || !strings.Contains(err.Error(), says) || runner.KindOf(err) != runner.Internal {
		t.Errorf("got %v", err)
	}
	if _, err := p.process.ask.Arrange(t.Context(), arrangeMessage(ask())); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("by a call: got %v", err)
	}
	free := []runner.Worker{{Role: runner.Target}}
	if _, err := p.Assign(t.Context(), scheduler.AssignRequest{Row: 1, Free: free}); err != nil || p.State().Pid != pid {
		t.Errorf("got %v, %+v", err, p.State())
	}
	awaitLog(t, o, "main_test.go") // its trace
}

// TestHowItIsAsked is told: an older plugin has no streams.
func TestHowItIsAsked(t *testing.T) {
	for _, c := range []struct {
		of   Entry
		want string
	}{{entry(t, "good"), OnStreams}, {old(t), ByCalls}} {
		if d, err := Describe(t.Context(), c.of, options(t)); err != nil || d.Asked != c.want {
			t.Errorf("want %s, got %+v, %v", c.want, d, err)
		}
	}
}
