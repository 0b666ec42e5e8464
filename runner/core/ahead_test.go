package core

import (
	"reflect"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestArrangeAhead: samples are asked for while rows for some steps are left,
// never past the run's end, and the plans are those of a run that asks when it
// must.
func TestArrangeAhead(t *testing.T) {
	plans := func(ahead, planned int) (all []runner.PlanRecord, ready []int) {
		s := setup{targets: 1, drafters: 2, micros: 2, steps: 6, slots: 2, budget: 9, ahead: ahead, verbose: true,
			tune: func(c *Config) { c.Steps, c.Planner = 6, &simple{ranks: 2, micros: 2, steps: planned} }}
		x := newWorld(&s, 0, 0)
		x.drive(t, nil, 2000)
		if x.finished.Code != runner.ExitDone {
			t.Fatalf("finished with %+v", x.finished)
		}
		fed, each := 0, s.drafters*s.micros
		for _, a := range x.acts {
			switch a := a.(type) {
			case Arrange:
				ready = append(ready, fed/each-len(all))
				fed += a.Count
			case Append:
				if p, ok := a.Record.(runner.PlanRecord); ok {
					all = append(all, p)
				}
			}
		}
		return all, ready
	}
	late, never := plans(0, 6)
	for _, n := range never {
		if n != 0 {
			t.Errorf("asked with rows for %d steps left, want none: %v", n, never)
		}
	}
	early, ready := plans(2, 6)
	if !reflect.DeepEqual(early, late) || len(early) != 6 {
		t.Errorf("want the same six plans, got %d and %d", len(early), len(late))
	}
	if len(ready) != 6 || ready[5] != 1 {
		t.Errorf("asked with rows for so many steps left: %v; want one at the last", ready)
	}
	if all, ready := plans(2, 9); len(all) != 6 || len(ready) != 6 {
		t.Errorf("a run of 6 steps with samples for 9: %d plans of %d arrangements, want 6 of 6", len(all), len(ready))
	}
}
