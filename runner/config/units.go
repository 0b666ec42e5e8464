package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is written with its unit: 250ms, 30s, 5m, 1h30m.
type Duration time.Duration

// D gives the standard library's duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String gives the shortest spelling: 15m, not 15m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration that is not negative.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("want a duration with its unit such as 30s, 5m or 1h30m, got %q", clip(string(b)))
	}
	if v < 0 {
		return fmt.Errorf("want a duration that is not negative, got %s", clip(string(b)))
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, written with its unit: 512MiB, 3MB, 0B.
type Size uint64

var sizeUnits = [...]struct {
	name  string
	bytes uint64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

// String gives the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && uint64(s)%u.bytes == 0 {
			return strconv.FormatUint(uint64(s)/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// MarshalText writes String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(b []byte) error {
	text := string(b)
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 64)
		if err != nil {
			break
		}
		if n > math.MaxInt64/u.bytes {
			return fmt.Errorf("want a size below 8388608TiB, got %q", clip(text))
		}
		*s = Size(n * u.bytes)
		return nil
	}
	return fmt.Errorf("want a whole size with its unit such as 2GiB, 512MiB or 3MB, got %q", clip(text))
}

// clip bounds what a message repeats of the user's input.
func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}
