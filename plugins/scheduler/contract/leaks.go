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
	leakTasks     = 20  // goroutines or threads more than before: some come and go by themselves
	leakMemoryMiB = 64  // more: a heap that is collected now and then stays below
	settleWithin  = 2 * time.Second
	settleEvery   = 50 * time.Millisecond
)

// leaves finds what grows with every question. It looks twice: what a plugin
// makes once and keeps, as a pool of workers, does not grow again.
func (k *kit) leaves(ctx context.Context) (string, error) {
	if err := k.many(ctx); err != nil { // what the first questions make is no leak
		return "", err
	}
	before := k.settled(ctx, host.Vitals{})
	var found []string
	for range 2 {
		if err := k.many(ctx); err != nil {
			return "", err
		}
		after := k.settled(ctx, before)
		more := grown(before, after)
		if more == "" {
			return after.String(), nil
		}
		found, before = append(found, more), after
	}
	return "", fmt.Errorf("want as much after %d calls as before, got %s", leakCalls, found[0])
}

// many asks several hundred questions, one after another, of each kind that is
// asked often.
func (k *kit) many(ctx context.Context) error {
	var asks []func(context.Context) error
	if k.plugin.Can(scheduler.Assign) {
		asks = append(asks, k.oneAssign)
	}
	if k.plugin.Can(scheduler.Arrange) {
		asks = append(asks, k.oneArrange)
	}
	for i := range leakCalls {
		if err := asks[i%len(asks)](ctx); err != nil {
			return err
		}
	}
	return nil
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
		if before == (host.Vitals{}) || grown(before, v) == "" {
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
func grown(before, after host.Vitals) string {
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
			return fmt.Sprintf("%s: %d%s before %d calls, %d%s after", x.name, x.was, x.unit, leakCalls, x.is, x.unit)
		}
	}
	return ""
}
