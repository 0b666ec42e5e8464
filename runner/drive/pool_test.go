package drive

import "testing"

// TestPoolOf: what is left, but no more than was asked for, four times the
// answer and the limit allow.
func TestPoolOf(t *testing.T) {
	for _, c := range []struct{ pool, count, left, want int }{
		{1024, 200, 20_000, 1024},
		{1024, 300, 20_000, 1200}, // four times what is to be given
		{1024, 300, 1100, 1100},
		{1, 10, 7, 7},
		{0, 10, 1 << 20, PoolLimit},
		{1024, 1 << 20, 1 << 22, PoolLimit},
		{PoolLimit, 10, 1 << 22, PoolLimit},
	} {
		if got := poolOf(c.pool, c.count, c.left); got != c.want {
			t.Errorf("pool %d, %d of %d: got %d, want %d", c.pool, c.count, c.left, got, c.want)
		}
	}
}
