package drive_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Flags of the chaos test: `go test ./runner/drive -run Chaos -chaos.minutes 60`;
// other packages do not know them.
var (
	chaosMinutes = flag.Float64("chaos.minutes", 0, "strike fakes for so many minutes; 0: until each cell of the table was struck")
	chaosSeed    = flag.Uint64("chaos.seed", 0, "strike one history as this seed did, and print it; 0: new seeds each time")
)

const (
	leastHistories = 60  // all of `go test -short`
	mostHistories  = 900 // within which a short run must have struck every cell
)

// TestChaos_Fakes strikes runs of fakes in every state of every machine, kills
// the supervisor again and again, and goes on until they are done: each ends
// as the undisturbed run of its scene, and leaves nothing behind. In a third of
// them a plugin decides, and the run that it is held against follows the order
// that came of it.
func TestChaos_Fakes(t *testing.T) {
	all := &table{did: map[string]int{}}
	openPoller(t)
	began := time.Now()
	for n := 0; !t.Failed() && more(n, time.Since(began), all); n++ {
		seed := *chaosSeed
		if seed == 0 {
			seed = rand.Uint64()&^aimMask | all.scarce(n)
		}
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { chaosHistory(t, seed, all) })
	}
	t.Logf("%d histories, %d with a plugin, in %v\n%s", all.histories, all.withPlugin, time.Since(began).Round(time.Second), all)
	if *chaosSeed == 0 && !testing.Short() && !t.Failed() {
		all.judge(t)
	}
}

func more(done int, spent time.Duration, all *table) bool {
	switch {
	case *chaosSeed != 0:
		return done == 0
	case testing.Short():
		return done < leastHistories
	case *chaosMinutes > 0:
		return spent.Minutes() < *chaosMinutes
	}
	return done < leastHistories || done < mostHistories && (len(all.empty(0)) > 0 || len(all.undone()) > 0)
}

// chaosHistory is one history and what it is held against.
func chaosHistory(t *testing.T, seed uint64, all *table) {
	s := newScene(seed)
	dir := t.TempDir()
	before := descriptors(t)
	var want, got outcome
	var order []runner.ArrangeRecord // nil: the built-in's
	said := func() string { return "" }
	defer func() {
		if t.Failed() || *chaosSeed != 0 {
			t.Logf("-chaos.seed=%d: %s\n%s", seed, s, said())
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s, dir+"/struck")
		w.struck, said = all, w.said
		if s.plugin {
			w.placed()
		}
		if got = w.toTheEnd(); s.plugin && !t.Failed() {
			order = w.arranged()
		}
	})
	if t.Failed() {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, s, dir+"/whole")
		w.follow = order
		want = w.undisturbed()
	})
	if got != want {
		t.Errorf("want the end of an undisturbed run in the same order\n%+v, got\n%+v", want, got)
	}
	if s.plugin {
		all.withPlugin++
	}
	for fd, what := range descriptors(t) {
		if before[fd] == "" {
			t.Errorf("want no descriptor left open, got %s of %s", fd, what)
		}
	}
	all.histories++
}

// openPoller has the runtime open the descriptors that it keeps for itself.
func openPoller(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
}

// descriptors gives what this process has open.
func descriptors(t *testing.T) map[string]string {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]string{}
	for _, d := range all {
		if what, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil { // not that of this look
			open[d.Name()] = what
		}
	}
	return open
}
