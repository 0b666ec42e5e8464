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
	leakLeast     = 8   // of a plugin that is too slow for all: fewer tell nothing
	leakWithin    = 10 * time.Second
	leakTasks     = 20 // goroutines or threads more than before: some come and go by themselves
	leakTasksFew  = 3  // of fewer calls than would make leakTasks, as one in leakTaskOf makes one
	leakTaskOf    = 4
	leakMemoryMiB = 64 // more: a heap that is collected now and then stays below
	settleWithin  = 2 * time.Second
	settleEvery   = 50 * time.Millisecond
)

// leaves finds what grows with every question. It looks twice: what a plugin
// makes once and keeps, as a pool of workers, does not grow again.
func (k *kit) leaves(ctx context.Context) (string, error) {
	if _, err := k.many(ctx); err != nil { // what the first questions make is no leak
		return "", err
	}
	before := k.settled(ctx, host.Vitals{}, 0)
	found := ""
	for range 2 {
		calls, err := k.many(ctx)
		if err != nil {
			return "", err
		}
		after := k.settled(ctx, before, calls)
		more := grown(before, after, calls)
		if more == "" {
			return after.String() + sight(calls), nil
		}
		if before = after; found == "" {
			found = more
		}
	}
	return "", fmt.Errorf("want as much after many calls as before, got %s", found)
}

// sight says what is too little to be seen with so few calls, or nothing.
func sight(calls int) string {
	if calls >= leakTasks*leakTaskOf {
		return ""
	}
	return fmt.Sprintf("; it is slow: with %d calls, less than %d MiB a call is not seen", calls, (leakMemoryMiB+calls-1)/calls)
}

// many asks several hundred questions, one after another, of each kind that is
// asked often, and gives how many it had the time for; a skip where these tell
// nothing.
func (k *kit) many(ctx context.Context) (calls int, err error) {
	var asks []func(context.Context) error
	if k.plugin.Can(scheduler.Assign) {
		asks = append(asks, k.oneAssign)
	}
	if k.plugin.Can(scheduler.Arrange) {
		asks = append(asks, k.oneArrange)
	}
	for began := time.Now(); calls < k.leakCalls && time.Since(began) < leakWithin; calls++ {
		if err := asks[calls%len(asks)](ctx); err != nil {
			return calls, err
		}
	}
	if calls < leakLeast {
		return calls, skip(fmt.Sprintf("it is too slow to tell: %d calls took %s, want %d or more", calls, leakWithin, leakLeast))
	}
	return calls, nil
}

// settled looks until nothing has grown, in a bound: what a question began may
// end a little after its answer.
func (k *kit) settled(ctx context.Context, before host.Vitals, calls int) host.Vitals {
	late, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	again := time.NewTicker(settleEvery)
	defer again.Stop()
	for {
		v := k.plugin.Vitals(ctx)
		if before == (host.Vitals{}) || grown(before, v, calls) == "" {
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
	tasks := min(leakTasks, max(calls/leakTaskOf, leakTasksFew))
	for _, x := range []struct {
		name          string
		was, is, more int
		unit          string
	}{
		{"goroutines", before.Goroutines, after.Goroutines, tasks, ""},
		{"threads", before.Started, after.Started, tasks, ""},
		{"threads of the process", before.Threads, after.Threads, tasks, ""},
		{"memory", int(before.MemoryBytes >> 20), int(after.MemoryBytes >> 20), leakMemoryMiB, " MiB"},
	} {
		if x.was > 0 && x.is-x.was > x.more {
			return fmt.Sprintf("%s: %d%s before %d calls, %d%s after", x.name, x.was, x.unit, calls, x.is, x.unit)
		}
	}
	return ""
}
