package up

import (
	"fmt"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// budget ends a run early, as training.stop_after says: by the steps of this
// supervisor's life, or by the time since the first of them.
type budget struct {
	limit config.StopAfter
	stop  func(reason string) // called at most once for each limit; must not block

	mu    sync.Mutex // guards below
	steps int
	timer *time.Timer // nil before the first step, or without a limit of time
}

// observe counts a step. From any goroutine.
func (b *budget) observe(e runner.Event) {
	if e.Name == "run ends" {
		b.close() // what is left is no training
	}
	if e.Name != "step decided" {
		return
	}
	b.mu.Lock()
	b.steps++
	n := b.steps
	if d := b.limit.Time.D(); n == 1 && d > 0 {
		b.timer = time.AfterFunc(d, func() { b.stop(fmt.Sprintf("training.stop_after.time: %v are over", d)) })
	}
	b.mu.Unlock()
	if n == b.limit.Steps {
		b.stop(fmt.Sprintf("training.stop_after.steps: %d steps are trained", n))
	}
}

// close lets no timer run on.
func (b *budget) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
}
