package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// Config says what to watch, and how long to wait.
type Config struct {
	GPUs []GPU
	// Run starts the child and calls onLine for every line of its stdout until
	// it and all its descendants are gone; when ctx is done it ends them. A line
	// that is too long ends it with an error.
	Run func(ctx context.Context, onLine func([]byte)) error
	// First and Deadline are how long the first line and each later one may take.
	First, Deadline time.Duration
	// BackoffMin is the wait before the child is started again; it doubles up to
	// BackoffMax, and is forgotten once a child has lived for Lived.
	BackoffMin, BackoffMax, Lived time.Duration
	// Tell hears of each end of the child, and of each first sample after it.
	Tell func(level runner.Level, message string)
	// Unfit hears once of each GPU that must not be used again, and why. May be nil.
	Unfit func(uuid, reason string)
}

// Watch watches until its context is done.
type Watch struct {
	c     Config
	uuids []string
	done  chan struct{}

	mu     sync.Mutex // guards below
	newest []admin.DeviceStatus
	errors map[string]uint64 // uncorrected, at the first sample
	barred map[string]bool   // told of as unfit
	at     time.Time         // of the newest sample; zero: none
	why    string            // nothing is known now
	told   string            // of the last child's end
	starts uint64
}

// Start begins to watch; it ends with ctx.
func Start(ctx context.Context, c Config) *Watch {
	w := &Watch{c: c, done: make(chan struct{}), errors: map[string]uint64{}, barred: map[string]bool{}, why: "no sample yet"}
	for _, g := range c.GPUs {
		w.uuids = append(w.uuids, g.UUID)
		w.newest = append(w.newest, admin.DeviceStatus{UUID: g.UUID, Index: g.Index, Name: g.Name})
	}
	go w.run(ctx) // ends with ctx, once the child is gone; Close waits for it
	return w
}

// Close waits for the end, after ctx is done, within a bound: a child that is
// stuck in the driver cannot be waited for.
func (w *Watch) Close(bound time.Duration) error {
	late := time.NewTimer(bound)
	defer late.Stop()
	select {
	case <-w.done:
		return nil
	case <-late.C:
		return runner.Errorf(runner.Unavailable, "end probe: it survives SIGKILL (stuck in the driver?)").WithHint("look at the NVIDIA driver: dmesg")
	}
}

// Devices gives every GPU as it is known now. A sample that is older than the
// deadline says nothing any more, whatever the child is doing.
func (w *Watch) Devices(now time.Time) []admin.DeviceStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]admin.DeviceStatus, len(w.newest))
	copy(out, w.newest)
	why := w.why
	if age := now.Sub(w.at); why == "" && age > w.c.Deadline {
		why = fmt.Sprintf("no sample for %s", age.Round(time.Second))
	}
	for i := range out {
		if out[i].Throttle == nil {
			out[i].Throttle = []string{}
		}
		if out[i].Processes == nil {
			out[i].Processes = []admin.GPUUser{}
		}
		if why != "" {
			out[i] = unknown(out[i], why)
		}
	}
	return out
}

// Starts counts the starts of the child.
func (w *Watch) Starts() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.starts
}

// run starts child after child.
func (w *Watch) run(ctx context.Context) {
	defer close(w.done)
	wait := w.c.BackoffMin
	for {
		began := time.Now()
		why := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		w.lost(why)
		if time.Since(began) >= w.c.Lived {
			wait = w.c.BackoffMin
		}
		pause := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		wait = min(2*wait, w.c.BackoffMax)
	}
}

// errLate ends a child that owes a line; errGarbage one that printed something else.
var (
	errLate    = errors.New("late")
	errGarbage = errors.New("garbage")
)

// once runs one child to its end, and gives why it ended.
func (w *Watch) once(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.mu.Lock()
	w.starts++
	w.mu.Unlock()
	var wrong, said error // set by the reader of lines, read after it ended
	late := time.AfterFunc(w.c.First, func() { cancel(errLate); w.lose("no answer in time; the probe is being ended") })
	defer late.Stop()
	err := w.c.Run(ctx, func(text []byte) {
		if wrong != nil || said != nil || ctx.Err() != nil {
			return
		}
		l, err := parse(text, w.uuids)
		switch {
		case err != nil:
			wrong = err
			cancel(errGarbage)
		case l.Error != "":
			said = runner.Errorf(runner.Unavailable, "%s", l.Error).WithHint("%s", l.Hint)
		default:
			late.Reset(w.c.Deadline)
			w.take(l, time.Now())
		}
	})
	switch cause := context.Cause(ctx); {
	case said != nil:
		return said
	case wrong != nil:
		return wrong
	case errors.Is(cause, errLate):
		return runner.Errorf(runner.Unavailable, "no answer in time").WithHint("a GPU or its driver may hang: dmesg, nvidia-smi")
	case err != nil:
		return err
	}
	return runner.Errorf(runner.Unavailable, "ended by itself")
}

// take keeps a sample.
func (w *Watch) take(l line, at time.Time) {
	var bar [][2]string
	w.mu.Lock()
	again := w.why != ""
	w.at, w.why, w.told = at, "", ""
	for i, d := range l.Devices {
		if _, seen := w.errors[d.UUID]; !seen && d.ECCUncorrected != nil {
			w.errors[d.UUID] = *d.ECCUncorrected
		}
		w.newest[i] = judge(w.c.GPUs[i], d, at, w.errors[d.UUID])
		if why := unfit(d, w.errors[d.UUID]); why != "" && !w.barred[d.UUID] {
			w.barred[d.UUID] = true
			bar = append(bar, [2]string{d.UUID, fmt.Sprintf("GPU %d: %s", w.c.GPUs[i].Index, why)})
		}
	}
	w.mu.Unlock()
	for _, b := range bar {
		if w.c.Unfit != nil {
			w.c.Unfit(b[0], b[1])
		}
	}
	if again {
		w.c.Tell(runner.Info, "GPUs are watched")
	}
}

// lose says that nothing is known from now on.
func (w *Watch) lose(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = why
}

// lost tells of a child's end, once for each reason in a row.
func (w *Watch) lost(err error) {
	why := clean(err.Error())
	if hint := runner.HintOf(err); hint != "" {
		why += " (" + clean(hint) + ")"
	}
	w.mu.Lock()
	again := w.told == why
	w.why, w.told = why, why
	w.mu.Unlock()
	if !again {
		w.c.Tell(runner.Warn, "GPUs are not watched: "+why)
	}
}
