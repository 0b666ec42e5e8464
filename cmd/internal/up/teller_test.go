package up

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner"
)

// Observe writes what it is told to the plugin's log, where it watches.
func (p plugged) Observe(e scheduler.Event) {
	if p.which == "watcher" {
		fmt.Fprintln(os.Stderr, "observed", e.Number, e.Step, strings.ReplaceAll(e.Name, " ", "_"))
	}
}

// TestTellerNumbers: events of many goroutines are given one after another, each
// once, and a goroutine's own in its order.
func TestTellerNumbers(t *testing.T) {
	var got []scheduler.Event
	tell := &teller{give: func(e scheduler.Event) {
		runtime.Gosched() // others would come first now
		got = append(got, e)
	}}
	const goroutines, each = 8, 500
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() { // ends by itself
			for n := range each {
				tell.observe(runner.Event{Name: fmt.Sprint(g), Step: runner.Step(n)})
			}
		})
	}
	all.Wait()
	next := map[string]runner.Step{}
	for i, e := range got {
		if e.Number != uint64(i+1) || e.Step != next[e.Name] {
			t.Fatalf("place %d: number %d, event %d of goroutine %s, want %d", i, e.Number, e.Step, e.Name, next[e.Name])
		}
		next[e.Name]++
	}
	if len(got) != goroutines*each {
		t.Errorf("%d events, want %d", len(got), goroutines*each)
	}
	(*teller)(nil).observe(runner.Event{}) // there is no plugin
}

// TestTellerWaitsForThePlugin: the first events wait until it is there, with
// their own times; what had no room leaves a gap in the numbers.
func TestTellerWaitsForThePlugin(t *testing.T) {
	tell := &teller{}
	for range earlyRoom + 3 {
		tell.observe(runner.Event{Name: "early"})
	}
	before := time.Now()
	var got []scheduler.Event
	tell.begin(func(e scheduler.Event) { got = append(got, e) })
	tell.observe(runner.Event{Name: "late"})
	if len(got) != earlyRoom+1 || got[0].Number != 1 || got[0].At.After(before) || got[0].At.IsZero() || got[earlyRoom-1].Number != earlyRoom ||
		got[earlyRoom].Number != earlyRoom+4 || got[earlyRoom].Name != "late" {
		t.Errorf("%d events, the first %+v, the last %+v", len(got), got[0], got[len(got)-1])
	}
}

// TestPluginObserves: events of the loop and of what stands around it, in order;
// numbers that are missing were lost, and none comes twice.
func TestPluginObserves(t *testing.T) {
	b := newBench(t)
	f, u := b.run("run", false, nil, plugs(t, "watcher")...)
	b.check(f, u)
	log, err := os.ReadFile(u.dir.join("logs", "scheduler-plugged.1.log"))
	if err != nil {
		t.Fatal(err)
	}
	first, last, decided, seen := 0, 0, 0, map[string]bool{}
	for line := range strings.Lines(string(log)) {
		_, said, ok := strings.Cut(line, "observed ")
		if !ok {
			continue
		}
		var number, step int
		var name string
		if n, err := fmt.Sscan(said, &number, &step, &name); n != 3 || number <= last {
			t.Fatalf("after number %d: %q, %v", last, said, err)
		}
		if name == "step_decided" {
			if step <= decided {
				t.Errorf("step %d is told after step %d", step, decided)
			}
			decided = step
		}
		if first == 0 {
			first = number
		}
		last, seen[name] = number, true
	}
	if first != 1 { // what happened before it was started is told
		t.Errorf("the first number is %d", first)
	}
	for _, name := range []string{"placement", "worker_certified", "step_decided"} {
		if !seen[name] {
			t.Errorf("of %d events, none is %s: %v", last, name, seen)
		}
	}
}
