package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// scene is a world that a test leads by hand.
type scene struct {
	*world
	t         *testing.T
	lastFirst bool // of what can happen, the last happens first
}

// stage runs a world, without bad luck, until a moment is there.
func stage(t *testing.T, s setup, until func(*world) bool) *scene {
	t.Helper()
	s.verbose = true
	x := &scene{world: newWorld(&s, 0, 0), t: t}
	x.anyEnd = true
	x.until(until)
	return x
}

func (x *scene) until(moment func(*world) bool) {
	x.t.Helper()
	for range 5000 {
		if x.bad != "" {
			x.t.Fatalf("%s\n%s", x.bad, x.history())
		}
		if moment(x.world) {
			return
		}
		ms := slices.DeleteFunc(x.moves(), move.fault)
		if len(ms) == 0 {
			break
		}
		if x.lastFirst {
			slices.Reverse(ms)
		}
		x.apply1(ms[0])
	}
	x.t.Fatalf("the moment never came\n%s", x.history())
}

// settle lets everything happen but the answer of worker i to an order.
func (x *scene) settle(i int, pick func(runner.Order) bool) {
	x.t.Helper()
	for range 500 {
		ms := slices.DeleteFunc(x.moves(), func(m move) bool {
			return m.fault() || m.verb == work && m.i == i && pick(x.procs[i].head())
		})
		if len(ms) == 0 {
			return
		}
		x.apply1(ms[0])
	}
	x.t.Fatalf("it never settled\n%s", x.history())
}

// over runs to the end and gives how it ended.
func (x *scene) over() Finish {
	x.t.Helper()
	x.until(func(w *world) bool {
		return w.finished != nil || w.bad != "" && strings.HasPrefix(w.bad, "finished with code")
	})
	return *x.finished
}

// answer gives a reply of the test's choice to an order that a worker has.
func (x *scene) answer(i int, pick func(runner.Order) bool, r ...runner.Reply) {
	x.t.Helper()
	p := &x.procs[i]
	for _, q := range []*[]ask{&p.main, &p.fast} {
		for n, k := range *q {
			if pick(k.order) {
				*q = slices.Delete(slices.Clone(*q), n, n+1)
				x.reply(p, k, r...)
				return
			}
		}
	}
	x.t.Fatalf("%v has no such order\n%s", p.life, x.history())
}

// step has worker i work off its orders up to one that pick accepts.
func (x *scene) step(i int, pick func(runner.Order) bool) {
	x.t.Helper()
	for len(x.procs[i].main) > 0 {
		over := pick(x.procs[i].head())
		x.apply1(move{verb: work, i: i})
		if over {
			return
		}
	}
	x.t.Fatalf("%v has no such order\n%s", x.procs[i].life, x.history())
}

// holding is the moment at which a worker has an order.
func holding(i int, pick func(runner.Order) bool) func(*world) bool {
	return func(w *world) bool {
		has := func(k ask) bool { return pick(k.order) }
		return slices.ContainsFunc(w.procs[i].main, has) || slices.ContainsFunc(w.procs[i].fast, has)
	}
}

// lastTrain accepts the micro-step that reduces.
func lastTrain(o runner.Order) bool {
	t, ok := o.(runner.Train)
	return ok && t.Last
}

// pass lets time pass: the core hears of it as it asked to.
func (x *scene) pass(d time.Duration) {
	x.now = x.now.Add(d)
	x.give(Tick{})
}

// count counts actions that pick accepts.
func count[A Action](x *scene, pick func(A) bool) (n int) {
	for _, a := range x.acts {
		if a, ok := a.(A); ok && (pick == nil || pick(a)) {
			n++
		}
	}
	return n
}

// kills gives the causes and messages of the kills so far.
func (x *scene) kills() (ks []Kill) {
	for _, a := range x.acts {
		if k, ok := a.(Kill); ok {
			ks = append(ks, k)
		}
	}
	return ks
}

// expectKill checks that just one life was killed, for a cause.
func (x *scene) expectKill(worker string, cause runner.Cause, message string) {
	x.t.Helper()
	ks := x.kills()
	if len(ks) != 1 || ks[0].Life.Worker.String() != worker || ks[0].Cause != cause || !strings.Contains(ks[0].Message, message) {
		x.t.Errorf("kills are %+v, want one of %s for %s: %s", ks, worker, cause, message)
	}
}
