package rows

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Order is the built-in order of an epoch: `draws` shuffles of samples, one
// after another. Each is a Fisher-Yates shuffle from the last place down, with
// numbers from math/rand/v2's PCG, seeded with the first 16 bytes of
// SHA-256("dflash-runner order", seed, epoch, draw), and reduced without bias
// by Lemire's method. The result is part of the product's promise: a run
// resumed by a later build sees the same order.
func Order(seed uint64, epoch uint32, samples []runner.Sample, draws uint32) []runner.Sample {
	out := make([]runner.Sample, 0, len(samples)*int(draws))
	for d := range draws {
		b := []byte("dflash-runner order")
		b = binary.LittleEndian.AppendUint64(b, seed)
		b = binary.LittleEndian.AppendUint32(b, epoch)
		b = binary.LittleEndian.AppendUint32(b, d)
		h := sha256.Sum256(b)
		g := rand.NewPCG(binary.LittleEndian.Uint64(h[:8]), binary.LittleEndian.Uint64(h[8:16]))
		s := slices.Clone(samples)
		for i := len(s) - 1; i > 0; i-- {
			j := below(g, uint64(i)+1)
			s[i], s[j] = s[j], s[i]
		}
		out = append(out, s...)
	}
	return out
}

// below draws a number in [0, n) without bias.
func below(g *rand.PCG, n uint64) uint64 {
	hi, lo := bits.Mul64(g.Uint64(), n)
	for threshold := -n % n; lo < threshold; {
		hi, lo = bits.Mul64(g.Uint64(), n)
	}
	return hi
}

// Schedule is the learning rate as a function of the step alone: linear from 0
// over the warm-up, then a half cosine down to the floor at the last step.
type Schedule struct {
	Peak   float64
	Floor  float64 // as a fraction of Peak
	WarmUp float64 // as a fraction of Total
	Total  uint64  // steps
}

// At gives the learning rate of step n, counted from 1. Steps past Total have
// the floor. Products are rounded one by one, so that no machine fuses them
// and the bits are the same everywhere.
func (s Schedule) At(n runner.Step) float64 {
	warm := uint64(math.Round(s.WarmUp * float64(s.Total)))
	if uint64(n) <= warm {
		return float64(s.Peak*float64(n)) / float64(warm)
	}
	floor := float64(s.Peak * s.Floor)
	if uint64(n) >= s.Total {
		return floor
	}
	part := float64(uint64(n)-warm) / float64(s.Total-warm)
	up := 1 + math.Cos(float64(math.Pi*part))
	return floor + float64(float64(0.5*up)*(s.Peak-floor))
}
