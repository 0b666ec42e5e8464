package simulate

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// search walks through all schedules of a setup: whoever could begin something
// begins it or waits for whatever ends next, and so do all ranks together with
// the last micro-step. In some shortest schedule everything begins when
// something ends, and pulls as soon as they may, as an earlier one holds nothing
// else up; so the shortest of these is the shortest of all.
type search struct {
	path []bool          // choices, true: held back
	at   int             // the next one
	seen map[[3]int]bool // those of this moment, by node, worker, and turns given
	ends int             // so many things have ended: another moment
}

// hold makes a choice, or gives the one made in this moment.
func (s *search) hold(w *world, n *node, i int) bool {
	if popped := int(w.order) - len(w.events); popped != s.ends {
		clear(s.seen)
		s.ends = popped
	}
	key := [3]int{-1, 0, 0}
	if n != nil {
		if d := n.devices[n.workers[i].device]; d.taken >= d.turns {
			return false // it waits anyway
		}
		key = [3]int{n.index, i, int(n.grants)}
	}
	held, ok := s.seen[key]
	if !ok {
		if s.at == len(s.path) {
			s.path = append(s.path, false)
		}
		held = s.path[s.at]
		s.at++
		s.seen[key] = held
	}
	return held
}

// next goes to the path that follows; false: that was the last one.
func (s *search) next() bool {
	s.path = s.path[:s.at]
	for len(s.path) > 0 && s.path[len(s.path)-1] {
		s.path = s.path[:len(s.path)-1]
	}
	if len(s.path) == 0 {
		return false
	}
	s.path[len(s.path)-1] = true
	return true
}

// shortest gives the shortest schedule, and how many there are; no: too many.
func shortest(s Setup, most int) (best time.Duration, runs int, ok bool) {
	best = math.MaxInt64
	walk := search{seen: map[[3]int]bool{}}
	s.hold = walk.hold
	for more := true; more; more = walk.next() {
		if runs++; runs > most {
			return best, runs, false
		}
		clear(walk.seen)
		walk.at, walk.ends = 0, -1
		if r, err := Run(s); err == nil { // an error: all wait for ever
			best = min(best, r.Makespan)
		}
	}
	return best, runs, true
}

// TestEverySchedule: the bound is no longer than the shortest of all schedules of
// a small setup, and in most it is as long.
func TestEverySchedule(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 10))
	walked, reached, schedules, gap := 0, 0, 0, 0.0
	for range 120 {
		s := random(r)
		_, drafters := s.count()
		s.Nodes, s.Steps, s.RowsPerStep = 1, 1+r.IntN(2), drafters*(1+r.IntN(2))
		s.Assign, s.Trail, s.Trace.Slow = nil, false, nil
		if r.IntN(3) == 0 {
			s.Trace.Slow = []Slow{{0, r.IntN(len(s.Turns)), 0.5 + 2*r.Float64()}}
		}
		best, runs, ok := shortest(s, 1000)
		schedules += runs
		bound, rule := s.Bound().Seconds, mustRun(t, s).Makespan
		if best.Seconds() < bound-1e-8 {
			t.Errorf("%+v: a schedule of %s beats the bound of %.9f s", brief(s), best, bound)
		}
		if !ok {
			continue
		}
		walked++
		if rule < best {
			t.Errorf("%+v: %s by rule, %s is the shortest that was found", brief(s), rule, best)
		}
		gap += best.Seconds()/bound - 1
		if best.Seconds() < 1.001*bound {
			reached++
		}
	}
	t.Logf("%d schedules; of %d setups walked through, %d have one as short as the bound; on average %.2f %% longer", schedules, walked, reached, 100*gap/float64(walked))
	if walked < 40 || reached < walked*2/3 || gap > 0.005*float64(walked) {
		t.Errorf("of %d setups walked through, %d have a schedule as short as the bound, and on average it is %.4f longer: the bound says little", walked, reached, gap/float64(walked))
	}
}

func mustRun(t *testing.T, s Setup) Result {
	t.Helper()
	r, err := Run(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
