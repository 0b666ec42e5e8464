package up

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

func TestBudget(t *testing.T) {
	step := runner.Event{Name: "step decided"}
	for name, c := range map[string]struct {
		limit config.StopAfter
		want  string // of the reason, after 3 steps a minute apart; empty: none
	}{
		"none":       {config.StopAfter{}, ""},
		"steps":      {config.StopAfter{Steps: 3}, "3 steps"},
		"more steps": {config.StopAfter{Steps: 4}, ""},
		"time":       {config.StopAfter{Time: config.Duration(90 * time.Second)}, "1m30s"},
		"more time":  {config.StopAfter{Time: config.Duration(time.Hour)}, ""},
		"both":       {config.StopAfter{Steps: 2, Time: config.Duration(61 * time.Second)}, "2 steps"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex // guards reasons: steps and the timer come from different goroutines
				reasons := []string{}
				b := &budget{limit: c.limit, stop: func(reason string) {
					mu.Lock()
					defer mu.Unlock()
					reasons = append(reasons, reason)
				}}
				time.Sleep(time.Hour) // before training nothing counts
				b.observe(runner.Event{Name: "worker ready"})
				for range 3 {
					b.observe(step)
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				if len(c.want) == 0 {
					b.observe(runner.Event{Name: "run ends"}) // what comes then is no training
				} else {
					b.close()
				}
				time.Sleep(2 * time.Hour) // after close nothing fires
				mu.Lock()
				defer mu.Unlock()
				switch {
				case c.want == "" && len(reasons) > 0:
					t.Errorf("want no stop, got %q", reasons)
				case c.want != "" && (len(reasons) == 0 || !strings.Contains(reasons[0], c.want)):
					t.Errorf("want a stop for %q, got %q", c.want, reasons)
				}
			})
		})
	}
}
