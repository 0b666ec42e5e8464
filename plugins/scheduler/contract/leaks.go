package contract

import (
	"context"
	"fmt"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
)

// What is looked at for what a plugin leaves behind with its questions.
const (
	leakCalls     = 300 // between two looks
	leakLeast     = 60  // of a plugin that is too slow for all: with fewer nothing is said
	leakWithin    = 10 * time.Second
	leakTasks     = 20 // goroutines or threads more than before: some come and go by themselves
	leakMemoryMiB = 64 // more: a heap that is collected now and then stays below
	settleWithin  = 2 * time.Second
	settleEvery   = 50 * time.Millisecond
)

// leaves finds what grows with every question. It looks twice: what a plugin
// makes once and keeps, as a pool of workers, does not grow again.
func (k *kit) leaves(ctx context.Context) (string, error) {
	if n, err := k.many(ctx); err != nil || n < leakLeast { // what the first questions make is no leak
		return fmt.Sprintf("not looked at: %d calls took %s", n, leakWithin), err
	}
	before := k.settled(ctx, host.Vitals{})
	var found []string
	for range 2 {
		calls, err := k.many(ctx)
		if err != nil {
			return "", err
		}
		after := k.settled(ctx, before)
		more := grown(before, after, calls)
		if more == "" {
			return after.String(), nil
		}
		found, before = append(found, more), after
	}
	return "", fmt.Errorf("want as much after some hundred calls as before, got %s", found[0])
}

// many asks several hundred questions, one after another, of each kind that is
// asked often, and gives how many it had the time for.
func (k *kit) many(ctx context.Context) (calls int, err error) {
	var asks []func(context.Context) error
	if k.plugin.Can(scheduler.Assign) {
		asks = append(asks, k.oneAssign)
	}
	if k.plugin.Can(scheduler.Arrange) {
		asks = append(asks, k.oneArrange)
	}
	for began := time.Now(); calls < leakCalls && time.Since(began) < leakWithin; calls++ {
		if err := asks[calls%len(asks)](ctx); err != nil {
			return calls, err
		}
	}
	return calls, nil
}

// settled looks until nothing has grown, in a bound: what a question began may
// end a little after its answer.
func (k *kit) settled(ctx context.Context, before host.Vitals) host.Vitals {
	late, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	again := time.NewTicker(settleEvery)
	defer again.Stop()
	for {
		v := k.plugin.Vitals(ctx)
		if before == (host.Vitals{}) || grown(before, v, 0) == "" {
			return v
		}
		select {
		case <-late.Done():
			return v
		case <-again.C:
		}
	}
}

// grown says what there is more of than may be, or nothing.
func grown(before, after host.Vitals, calls int) string {
	for _, x := range []struct {
		name          string
		was, is, more int
		unit          string
	}{
		{"goroutines", before.Goroutines, after.Goroutines, leakTasks, ""},
		{"threads", before.Started, after.Started, leakTasks, ""},
		{"threads of the process", before.Threads, after.Threads, leakTasks, ""},
		{"memory", int(before.MemoryBytes >> 20), int(after.MemoryBytes >> 20), leakMemoryMiB, " MiB"},
	} {
		if x.was > 0 && x.is-x.was > x.more {
			return fmt.Sprintf("%s: %d%s before %d calls, %d%s after", x.name, x.was, x.unit, calls, x.is, x.unit)
		}
	}
	return ""
}
