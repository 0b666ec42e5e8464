package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Synthetic says how rows are drawn.
type Synthetic struct {
	Seed   uint64
	Rows   int     // how many are drawn
	Jitter float64 // of every time: the standard deviation of its logarithm
	// Straggle is the share of rows that take StraggleBy times as long to make: a
	// pause of the target.
	Straggle, StraggleBy float64
	// Mixed is the share of rows of half the length.
	Mixed float64
}

// Default is what `synthetic:SEED` draws: one in ten rows short, 5 % jitter, one
// in a hundred rows three times as slow to make.
func Default(seed uint64) Synthetic {
	return Synthetic{Seed: seed, Rows: 4096, Jitter: 0.05, Straggle: 0.01, StraggleBy: 3, Mixed: 0.1}
}

// Draw makes a trace of rows around a mean row; all else is taken from base.
// The mean of a jittered time is the time itself. Half a row's tokens halve what
// making it costs; training it costs the same, as a drafter's work lies in its
// anchors.
func (s Synthetic) Draw(base Trace) Trace {
	r := rand.New(rand.NewPCG(s.Seed, 0x5eed))
	mean, out := base.Mean(), base
	out.Rows = make([]Row, s.Rows)
	out.Name = fmt.Sprintf("%s, synthetic:%d", base.Name, s.Seed)
	out.Source = fmt.Sprintf("drawn with seed %d around: %s", s.Seed, base.Source)
	out.Measured = false
	jitter := func() float64 { return math.Exp(s.Jitter*r.NormFloat64() - s.Jitter*s.Jitter/2) }
	for i := range out.Rows {
		row := Row{Tokens: mean.Tokens, TargetMS: mean.TargetMS * jitter(), DrafterMS: mean.DrafterMS * jitter()}
		if r.Float64() < s.Mixed {
			row.Tokens, row.TargetMS = row.Tokens/2, row.TargetMS/2
		}
		if r.Float64() < s.Straggle {
			row.TargetMS *= s.StraggleBy
		}
		out.Rows[i] = row
	}
	return out
}
