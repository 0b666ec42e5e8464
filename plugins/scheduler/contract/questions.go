package contract

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// pool makes n candidates of several lengths and two sources, the same always.
func pool(n int) []scheduler.Candidate {
	out := make([]scheduler.Candidate, n)
	for i := range out {
		tokens := uint32(16 + (i*7919)%480)
		out[i] = scheduler.Candidate{Sample: runner.Sample(3 * i), Tokens: tokens, Supervised: tokens / 2, Anchors: tokens / 4, Source: i % 2}
	}
	return out
}

func question(epoch uint32, count, total int, left []scheduler.Candidate) scheduler.ArrangeRequest {
	loss := 2.5
	return scheduler.ArrangeRequest{Epoch: epoch, Count: min(count, len(left)), Left: len(left), Total: total, Pool: left,
		Sources: []scheduler.Source{{Name: "a", Loss: &loss}, {Name: "b"}}}
}

// epochs orders two epochs to their ends, a horizon at a time; the host judges.
func (k *kit) epochs(ctx context.Context) (string, error) {
	const total, horizon = 333, 40
	var took []time.Duration
	for epoch := uint32(1); epoch <= 2; epoch++ {
		for left := pool(total); len(left) > 0; {
			began := time.Now()
			got, err := k.plugin.Arrange(ctx, question(epoch, horizon, total, left))
			if err != nil {
				return "", fmt.Errorf("epoch %d with %d left: %w", epoch, len(left), err)
			}
			took = append(took, time.Since(began))
			left = slices.DeleteFunc(left, func(c scheduler.Candidate) bool { return slices.Contains(got, c.Sample) })
		}
	}
	return middle(took), nil
}

func (k *kit) large(ctx context.Context) (string, error) {
	const total = 100_000
	began := time.Now()
	_, err := k.plugin.Arrange(ctx, question(1, 2000, total, pool(total)))
	return fmt.Sprintf("%d of %d samples in %s", 2000, total, time.Since(began).Round(time.Microsecond)), err
}

// draws: a sample may stand in the pool several times.
func (k *kit) draws(ctx context.Context) (string, error) {
	few := pool(5)
	left := slices.Concat(few, few)
	_, err := k.plugin.Arrange(ctx, question(1, len(left), len(left), left))
	return "", err
}

func target(rank int) runner.Worker {
	return runner.Worker{Role: runner.Target, Rank: runner.Rank(rank)}
}

func (k *kit) assign(ctx context.Context) (string, error) {
	var took []time.Duration
	for i := range 200 {
		q := scheduler.AssignRequest{Row: runner.Row(i + 1), Bucket: 3072, Tokens: uint32(100 + i)}
		for rank := range 2 + i%7 {
			q.Free = append(q.Free, target(rank+i%3))
		}
		began := time.Now()
		if _, err := k.plugin.Assign(ctx, q); err != nil {
			return "", err
		}
		took = append(took, time.Since(began))
	}
	return middle(took), nil
}

func devices(n int) (all []scheduler.Device) {
	for i := range n {
		all = append(all, scheduler.Device{ID: fmt.Sprintf("GPU-%d", i), Name: "test", MemoryBytes: 80 << 30, FreeBytes: 78 << 30, Health: "healthy", NUMA: uint32(i / 4)})
	}
	return all
}

// place asks for a split over eight devices and for pairs on as few as there are.
func (k *kit) place(ctx context.Context) (string, error) {
	var needs []scheduler.Need
	for i := range 4 {
		needs = append(needs, scheduler.Need{Worker: target(i), MemoryBytes: 20 << 30}, scheduler.Need{Worker: runner.Worker{Role: runner.Drafter, Rank: runner.Rank(i)}, MemoryBytes: 30 << 30})
	}
	_, err := k.plugin.Place(ctx, scheduler.PlaceRequest{Devices: devices(8), Needs: needs})
	if err != nil {
		return "", fmt.Errorf("8 workers on 8 devices: %w", err)
	}
	if _, err = k.plugin.Place(ctx, scheduler.PlaceRequest{Devices: devices(4), Needs: needs, Colocate: true}); err != nil {
		return "", fmt.Errorf("4 pairs on 4 devices: %w", err)
	}
	return "", nil
}

func (k *kit) failure(ctx context.Context) (string, error) {
	v, err := k.plugin.OnFailure(ctx, scheduler.FailureRequest{Worker: target(0), Device: "GPU-0", Cause: runner.CauseCUDA, Message: "an error of the device", Deaths: 1, Budget: 3, Devices: devices(2)})
	return string(v.Decision), err
}

// observe tells more than a plugin may take; that must not end it.
func (k *kit) observe(context.Context) (string, error) {
	for i := range 2000 {
		k.plugin.Observe(scheduler.Event{Number: uint64(i + 1), At: time.Now(), Level: runner.Info, Name: "step decided", Step: runner.Step(i)})
	}
	return "", nil
}

// late gives up on a question at once, and asks again.
func (k *kit) late(ctx context.Context) (string, error) {
	hasty, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_ = k.anything(hasty) // its end is not looked at: it may be quick
	return "", k.anything(ctx)
}

// together asks eight questions at a time.
func (k *kit) together(ctx context.Context) (string, error) {
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = k.anything(ctx) }) // ends with the answer or its deadline
	}
	all.Wait()
	for _, err := range errs { // mostly they say the same: one line is enough
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// anything asks whatever the plugin does.
func (k *kit) anything(ctx context.Context) error {
	switch {
	case k.plugin.Can(scheduler.Assign):
		return k.oneAssign(ctx)
	case k.plugin.Can(scheduler.Arrange):
		return k.oneArrange(ctx)
	}
	return nil
}

func (k *kit) oneAssign(ctx context.Context) error {
	_, err := k.plugin.Assign(ctx, scheduler.AssignRequest{Row: 1, Bucket: 64, Tokens: 32, Free: []runner.Worker{target(0), target(1)}})
	return err
}

func (k *kit) oneArrange(ctx context.Context) error {
	_, err := k.plugin.Arrange(ctx, question(1, 8, 64, pool(64)))
	return err
}

func middle(took []time.Duration) string {
	slices.Sort(took)
	return fmt.Sprintf("%d questions, p50 %s, p99 %s", len(took), took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond))
}
