package view

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// count writes a number with separators: 12,345.
func count[T ~int | ~int64 | ~uint64 | ~uint32](n T) string {
	digits := strconv.FormatUint(uint64(n), 10)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// bytesText writes a size in binary units.
func bytesText(n uint64) string {
	switch {
	case n == 0:
		return "-"
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
}

// seconds writes a span as people say it: 12s, 3m05s, 2h10m.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second)).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
}

// age writes milliseconds: 12ms below a second, else as seconds does.
func age(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%dms", ms)
	}
	return seconds(float64(ms) / 1000)
}

// figure writes a figure that may not be known yet, with its name in front.
func figure(parts []string, name, format string, v *float64) []string {
	if v == nil {
		return parts
	}
	return append(parts, strings.TrimSpace(name+" "+fmt.Sprintf(format, *v)))
}

// oneLine makes any text fit on a line of n columns and takes control
// characters out: a worker's message must not drive the terminal. 0: any length.
func oneLine(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, s)
	if r := []rune(s); n > 0 && len(r) > n {
		return string(r[:max(n-1, 0)]) + "…"
	}
	return s
}
