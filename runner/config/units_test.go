package config

import (
	"testing"
	"time"
)

func TestUnits(t *testing.T) {
	for text, want := range map[string]uint64{"0B": 0, "7B": 7, "3MB": 3e6, "2GiB": 2 << 30, "1 KiB": 1024, "5TB": 5e12} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || uint64(s) != want {
			t.Errorf("%s: want %d, got %d, %v", text, want, s, err)
		}
		var back Size
		if err := back.UnmarshalText([]byte(s.String())); err != nil || back != s {
			t.Errorf("%s: written as %s, read as %d, %v", text, s, back, err)
		}
	}
	for d, want := range map[time.Duration]string{0: "0s", 90 * time.Minute: "1h30m", time.Hour: "1h", 15 * time.Minute: "15m",
		time.Second: "1s", 1500 * time.Millisecond: "1.5s", 10 * time.Minute: "10m", time.Hour + time.Second: "1h0m1s"} {
		if got := Duration(d).String(); got != want {
			t.Errorf("want %s, got %s", want, got)
		}
	}
}
