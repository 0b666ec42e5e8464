package up

import (
	"runtime"
	"testing"
)

func TestProcs(t *testing.T) {
	for _, c := range []struct{ workers, most, want int }{
		{2, 16, 1}, {3, 16, 1}, {4, 16, 2}, {16, 16, 5}, {16, 2, 2}, {64, 128, 17}, {64, 1, 1},
	} {
		if got := procs(c.workers, c.most); got != c.want {
			t.Errorf("%d workers, %d at most: got %d, want %d", c.workers, c.most, got, c.want)
		}
	}
}

// TestProcessors sets what is the process's own, so nothing runs beside it.
func TestProcessors(t *testing.T) {
	runtime.SetDefaultGOMAXPROCS()
	before := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	t.Setenv("GOMAXPROCS", "")
	now := func(want int, when string) {
		t.Helper()
		if got := runtime.GOMAXPROCS(0); got != want {
			t.Errorf("%s: got %d, want %d", when, got, want)
		}
	}
	var p processors
	p.beside(func() { now(before, "not confined") })
	release := p.confine(2)
	now(1, "confined")
	p.beside(func() {
		now(2, "beside a digest")
		p.beside(func() { now(3, "beside two") })
		now(2, "beside one again")
	})
	now(1, "confined again")
	p.beside(func() {
		release()
		now(before, "released")
	})
	now(before, "released, and the digest over")
	t.Setenv("GOMAXPROCS", "3")
	p.confine(2)
	now(before, "the user's own")
}
