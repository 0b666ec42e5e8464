package simulate

// queue is what container/heap keeps: events by time, then by the order in which
// they were made.
type queue []event

// Len counts the events.
func (q queue) Len() int { return len(q) }

// Less reports whether event i comes before event j.
func (q queue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].order < q[j].order
}

// Swap swaps two events.
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push appends an event.
func (q *queue) Push(e any) { *q = append(*q, e.(event)) }

// Pop takes the last one.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = event{}
	*q = (*q)[:last]
	return e
}
