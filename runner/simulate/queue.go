package simulate

// queue is a heap of events by time, then by the order in which they were made.
type queue []event

func (q queue) before(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].order < q[j].order
}

func (q *queue) push(e event) {
	*q = append(*q, e)
	for i := len(*q) - 1; i > 0; {
		up := (i - 1) / 2
		if q.before(up, i) {
			return
		}
		(*q)[up], (*q)[i] = (*q)[i], (*q)[up]
		i = up
	}
}

// pop takes the first; there must be one.
func (q *queue) pop() event {
	first, n := (*q)[0], len(*q)-1
	(*q)[0] = (*q)[n]
	(*q)[n] = event{}
	*q = (*q)[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return first
		}
		if down+1 < n && q.before(down+1, down) {
			down++
		}
		if q.before(i, down) {
			return first
		}
		(*q)[i], (*q)[down] = (*q)[down], (*q)[i]
		i = down
	}
}
