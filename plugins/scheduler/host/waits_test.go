package host

import (
	"context"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestWaits: what a start and a question wait for can be seen while they do, and
// is over when they are.
func TestWaits(t *testing.T) {
	for which, what := range map[string]string{"silent": "handshake", "hang-info": "info", "late": "arrange"} {
		t.Run(which, func(t *testing.T) {
			o := options(t)
			o.Waits = &Waits{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { // ends with ctx; read below
				p, err := Start(ctx, entry(t, which), o)
				if err == nil {
					_, err = p.Arrange(ctx, ask())
					if e := p.Close(); e != nil {
						t.Error(e)
					}
				}
				over <- err
			}()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			seen := Wait{}
			for seen.What != what {
				select {
				case err := <-over:
					t.Fatalf("it ended with %v, and the newest wait was for %q", err, seen.What)
				case <-tick.C:
					seen, _ = o.Waits.Oldest()
				}
			}
			if seen.Limit != time.Minute || time.Since(seen.Since) < 0 {
				t.Errorf("got %+v", seen)
			}
			cancel()
			if err := <-over; err == nil || which != "silent" && runner.KindOf(err) != runner.Canceled {
				t.Errorf("got %v", err)
			}
			if left, n := o.Waits.Oldest(); n != 0 {
				t.Errorf("%d are left: %+v", n, left)
			}
		})
	}
}

// TestOldestWait: of several the oldest is told, in whatever order they end.
func TestOldestWait(t *testing.T) {
	var w Waits
	first := w.begin("place", time.Second)
	second := w.begin("arrange", time.Second)
	w.mu.Lock()
	x := w.open[1]
	x.Since = x.Since.Add(-time.Hour) // clocks may stand between the two
	w.open[1] = x
	w.mu.Unlock()
	if x, n := w.Oldest(); x.What != "place" || n != 2 {
		t.Errorf("got %+v of %d", x, n)
	}
	first()
	first()
	if x, n := w.Oldest(); x.What != "arrange" || n != 1 {
		t.Errorf("got %+v of %d", x, n)
	}
	second()
	if _, n := w.Oldest(); n != 0 {
		t.Errorf("%d are left", n)
	}
	(*Waits)(nil).begin("place", 0)()
}
