package steerbyloss

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/contract"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// pinned is the script as a catalog names it, with the interpreter pinned too.
func pinned(t *testing.T) host.Entry {
	t.Helper()
	e, err := host.Pin("steer_by_loss.py")
	if err != nil {
		t.Fatal(err)
	}
	e.Interpreter.Path = pyenvtest.Ensure(t).Python
	if e.Interpreter.SHA256, err = host.Sum(e.Interpreter.Path); err != nil {
		t.Fatal(err)
	}
	return e
}

// options are a run's, but for limits that a busy machine keeps.
func options(t *testing.T) host.Options {
	t.Helper()
	o := host.Defaults()
	o.Start, o.Call = time.Minute, time.Minute
	var err error
	if o.Directory, err = os.MkdirTemp("", "s"); err != nil { // a socket's path must be short
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(o.Directory) })
	return o
}

func TestContract(t *testing.T) {
	all := contract.Check(t.Context(), pinned(t), options(t))
	if !contract.Passed(all) {
		t.Errorf("got %+v", all)
	}
}

// TestChangesTheRun orders an epoch of two sources in the built-in's order and
// in the running plugin's. One source's loss is twice the other's at first; it
// falls as it is trained on, and the order follows.
func TestChangesTheRun(t *testing.T) {
	p, err := host.Start(t.Context(), pinned(t), options(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	builtin := func(q scheduler.ArrangeRequest) ([]runner.Sample, error) { return scheduler.First(q), nil }
	plugged := func(q scheduler.ArrangeRequest) ([]runner.Sample, error) { return p.Arrange(t.Context(), q) }
	plain, steered, again := epoch(t, builtin), epoch(t, plugged), epoch(t, plugged)
	t.Logf("share of code in each horizon: built-in %.2f, steered %.2f", plain, steered)
	if !slices.Equal(steered, again) {
		t.Errorf("want the same order again, got %v and %v", steered, again)
	}
	for i := range plain {
		if plain[i] < 0.49 || plain[i] > 0.51 {
			t.Errorf("horizon %d: want the built-in's half, got %.2f", i, plain[i])
		}
	}
	if steered[0] < 0.75 || steered[len(steered)-1] > 0.25 {
		t.Errorf("want the worse source first and the other last, got %.2f", steered)
	}
	if s := p.State(); s.Refused != 0 || s.Calls != 2*horizons {
		t.Errorf("state %+v", s)
	}
}

const horizons = 12

// epoch orders 1200 samples, every other of code, 100 at a time, and gives code's
// share of each horizon. A source's loss falls with what was trained of it.
func epoch(t *testing.T, arrange func(scheduler.ArrangeRequest) ([]runner.Sample, error)) (shares []float64) {
	t.Helper()
	var left []scheduler.Candidate
	for i := range 100 * horizons {
		left = append(left, scheduler.Candidate{Sample: runner.Sample(i), Tokens: 64, Supervised: 32, Anchors: 16, Source: i % 2})
	}
	total, trained := len(left), [2]int{}
	for len(left) > 0 {
		chat, code := 2.0-0.5*float64(trained[0])/600, 4.0-2.5*float64(trained[1])/600
		got, err := arrange(scheduler.ArrangeRequest{Epoch: 1, Count: 100, Left: len(left), Total: total, Pool: left,
			Sources: []scheduler.Source{{Name: "chat", Loss: &chat}, {Name: "code", Loss: &code}, {Name: "none"}}})
		if err != nil {
			t.Fatal(err)
		}
		before := trained[1]
		for _, s := range got {
			trained[s%2]++
		}
		shares = append(shares, float64(trained[1]-before)/float64(len(got)))
		left = slices.DeleteFunc(left, func(c scheduler.Candidate) bool { return slices.Contains(got, c.Sample) })
	}
	if trained != [2]int{600, 600} {
		t.Errorf("want every sample once, got %v", trained)
	}
	return shares
}
