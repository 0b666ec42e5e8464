package doctor

import (
	"fmt"
	"math"
)

// bytesText gives 1.5 GiB; the unit is the largest with one digit before the point.
func bytesText(n uint64) string {
	switch {
	case n == math.MaxUint64:
		return "unlimited"
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d B", n)
}

func limitText(l Limit, text func(uint64) string) string {
	if l.Soft == math.MaxUint64 {
		return "unlimited"
	}
	if l.Hard == math.MaxUint64 {
		return text(l.Soft) + " (at most unlimited)"
	}
	return fmt.Sprintf("%s (at most %s)", text(l.Soft), text(l.Hard))
}
