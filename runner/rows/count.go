package rows

// Horizon gives how many samples fill about that many steps: what a scheduler
// arranges at a time. It is a pure function of the index and the
// configuration, and at least one row's worth.
func (p *Planner) Horizon(steps int) int {
	tokens := uint64(0)
	for _, s := range p.plannable {
		tokens += uint64(p.index.Samples[s].Tokens)
	}
	want := uint64(max(steps, 1)) * uint64(p.config.RowsPerStep) * uint64(p.config.Buckets[len(p.config.Buckets)-1])
	// Samples of mean length tokens/len, without a division that rounds to 0.
	return int(max(1, want*uint64(len(p.plannable))/tokens))
}

// CountSteps gives how many steps a run of that many epochs in the built-in
// order takes, with horizons of `horizon` samples (0: a whole epoch each).
// What the learning rate of an epoch-counted run is scheduled over.
func CountSteps(ix *Index, c Config, seed uint64, epochs uint32, horizon int) (uint64, error) {
	p, err := NewPlanner(ix, c)
	if err != nil {
		return 0, err
	}
	for e := uint32(1); e <= epochs; e++ {
		order := Order(seed, e, p.plannable, c.Draws)
		for len(order) > 0 {
			n := len(order)
			if horizon > 0 {
				n = min(n, horizon)
			}
			if err := p.Feed(e, order[:n]); err != nil {
				return 0, err
			}
			order = order[n:]
			for ok := true; ok; {
				_, ok = p.Next()
			}
		}
	}
	return uint64(p.step), nil
}
