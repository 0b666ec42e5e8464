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

// TestConfine sets what is the process's own, so nothing runs beside it.
func TestConfine(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	t.Setenv("GOMAXPROCS", "")
	release := Options{Alone: true}.confine(2)
	if got := runtime.GOMAXPROCS(0); got != 1 {
		t.Errorf("confined: got %d, want 1", got)
	}
	release()
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("released: got %d, want %d", got, before)
	}
	Options{}.confine(2)
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("not alone: got %d, want %d", got, before)
	}
	t.Setenv("GOMAXPROCS", "3")
	Options{Alone: true}.confine(2)
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("the user's own: got %d, want %d", got, before)
	}
}
