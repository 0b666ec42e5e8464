package life

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

var (
	t0     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	budget = Budget{Deaths: 2, Decay: time.Minute, Base: time.Second, Cap: 3 * time.Second}
)

// all is every state and every event: what is not in the table must be refused.
func TestNext(t *testing.T) {
	type key struct {
		from State
		e    Event
	}
	fits := map[key]State{
		{Absent, Start}:       Launching,
		{Backoff, Start}:      Launching, // the next generation
		{Launching, Launched}: Waiting,
		{Waiting, Admitted}:   Warming,
		{Warming, Prove}:      Certified,
		{Certified, Prepared}: Ready,
		{Ready, Drain}:        Draining,
		{Certified, Drain}:    Draining, // has a lane already
		{Absent, Drain}:       Gone,     // never ran
		{Backoff, Drain}:      Gone,     // runs no more
		{Draining, Reap}:      Gone,     // the only good end
		// Any running life may be lost, once.
		{Launching, Lose}: Lost, {Waiting, Lose}: Lost, {Warming, Lose}: Lost,
		{Certified, Lose}: Lost, {Ready, Lose}: Lost, {Draining, Lose}: Lost,
		// Any running life may be reaped without having been lost first.
		{Launching, Reap}: Backoff, {Waiting, Reap}: Backoff, {Warming, Reap}: Backoff,
		{Certified, Reap}: Backoff, {Ready, Reap}: Backoff, {Lost, Reap}: Backoff,
		{Backoff, Bar}: Failed, // only what would start again is held back
	}
	for from := Absent; from <= Failed; from++ {
		for e := Start; e <= Bar; e++ {
			got, ok := Next(Life{State: from, Generation: 3}, e, t0, budget)
			want, fit := fits[key{from, e}]
			if !fit {
				want = from
			}
			if ok != fit || got.State != want {
				t.Errorf("%v on event %d: got %v, %v, want %v, %v", from, e, got.State, ok, want, fit)
			}
			if !fit && got.Since != (time.Time{}) {
				t.Errorf("%v on event %d: a refused event changed the life", from, e)
			}
			if wantGen := 3; from != Absent && from != Backoff || e != Start {
				if int(got.Generation) != wantGen {
					t.Errorf("%v on event %d: generation %d, want %d", from, e, got.Generation, wantGen)
				}
			} else if got.Generation != 4 {
				t.Errorf("start from %v: generation %d, want 4", from, got.Generation)
			}
		}
	}
}

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		name  string
		at    []time.Duration // of each death, from t0
		state State
		wait  time.Duration
	}{
		{"first death waits the base", []time.Duration{0}, Backoff, time.Second},
		{"second waits twice as long", []time.Duration{0, 1}, Backoff, 2 * time.Second},
		{"one more than the budget fails", []time.Duration{0, 1, 2}, Failed, 0},
		{"a quiet minute forgives one", []time.Duration{0, 1, time.Minute + 1}, Backoff, 2 * time.Second},
		{"just short of a minute does not", []time.Duration{0, 1, time.Minute}, Failed, 0},
		{"a quiet hour forgives all, and no more than all", []time.Duration{0, 1, time.Hour, time.Hour + 1}, Backoff, 2 * time.Second},
	} {
		l := Life{}
		for _, d := range c.at {
			l.State = Lost
			l, _ = Next(l, Reap, t0.Add(d), budget)
		}
		if l.State != c.state {
			t.Errorf("%s: got %v, want %v", c.name, l.State, c.state)
		}
		if last := t0.Add(c.at[len(c.at)-1]); c.wait > 0 && l.Until.Sub(last) != c.wait {
			t.Errorf("%s: waits %v, want %v", c.name, l.Until.Sub(last), c.wait)
		}
	}
}

func TestWaitIsCapped(t *testing.T) {
	if got := budget.wait(60, 1); got != budget.Cap {
		t.Errorf("60 deaths: waits %v, want the cap %v", got, budget.Cap)
	}
	if got := (Budget{Base: time.Second}).wait(1000, 1); got <= 0 || got > 2*time.Hour {
		t.Errorf("no cap: waits %v, want a positive wait of an hour or so", got)
	}
}

// TestJitter: waits differ between workers and generations, never by more than
// the share, never beyond the cap, and the same seed draws the same.
func TestJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for seed := range uint64(4) {
		b := budget
		b.Jitter, b.Seed = 0.5, seed
		for g := runner.Generation(1); g <= 50; g++ {
			got := b.wait(9, g)
			if got > b.Cap || got <= b.Cap/2 {
				t.Errorf("seed %d, generation %d: waits %v, want above %v and at most %v", seed, g, got, b.Cap/2, b.Cap)
			}
			if again := b.wait(9, g); again != got {
				t.Errorf("seed %d, generation %d: drew %v, then %v", seed, g, got, again)
			}
			seen[got] = true
		}
	}
	if len(seen) < 190 {
		t.Errorf("200 draws gave %d waits, want nearly all different", len(seen))
	}
}

// TestDecayByAClock: the budget over a life of deaths, with the time of the
// bubble's clock.
func TestDecayByAClock(t *testing.T) {
	for _, c := range []struct {
		name  string
		every time.Duration // from one death to the next
		fails int           // at which death; 0: never in a hundred
	}{
		{"faster than it decays", 20 * time.Second, 3},
		{"just as fast as it decays", time.Minute, 0},
		{"two in the time of one", 30 * time.Second, 3}, // less than a whole minute forgives nothing
		{"slowly", 10 * time.Minute, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, failed := Life{}, 0
				for n := 1; n <= 100 && failed == 0; n++ {
					l.State = Ready
					if l, _ = Next(l, Reap, time.Now(), budget); l.State == Failed {
						failed = n
					}
					time.Sleep(c.every)
				}
				if failed != c.fails {
					t.Errorf("failed at death %d, want %d", failed, c.fails)
				}
			})
		})
	}
}
