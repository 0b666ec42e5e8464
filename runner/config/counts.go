package config

import (
	"fmt"
	"strconv"
)

// Count is a number of workers, or auto: the scheduler chooses it.
type Count int

// Auto is a count that is left to the scheduler.
const Auto Count = 0

// maxCount bounds the workers of one role.
const maxCount = 256

// String gives the number, or auto.
func (n Count) String() string {
	if n == Auto {
		return "auto"
	}
	return strconv.Itoa(int(n))
}

// MarshalYAML writes a number, or auto.
func (n Count) MarshalYAML() (any, error) {
	if n == Auto {
		return n.String(), nil
	}
	return int(n), nil
}

// UnmarshalText reads a number of workers, or auto.
func (n *Count) UnmarshalText(b []byte) error {
	if string(b) == "auto" {
		*n = Auto
		return nil
	}
	v, err := strconv.Atoi(string(b))
	switch {
	case err != nil:
		return fmt.Errorf("want a whole number, or auto, got %q", clip(string(b)))
	case v < 1:
		return fmt.Errorf("want at least 1, or auto, got %d", v)
	case v > maxCount:
		return fmt.Errorf("want at most %d, got %d", maxCount, v)
	}
	*n = Count(v)
	return nil
}

// Costs says what work takes on one device of this kind, for a scheduler that
// chooses by it, and for `plan --simulate`. What is not given here is reckoned
// from the arithmetic, and said to be.
type Costs struct {
	// From is a trace of costs, or the summary.json of an earlier run with the same shapes, relative to the working directory; empty: what stands below. Default empty.
	From string `yaml:"from"`
	// TargetRow is how long a target takes for a row; 0s: reckoned. Default 0s.
	TargetRow Duration `yaml:"target_row" min:"0s"`
	// DrafterRow is how long a drafter takes for a row, forward and backward; 0s: reckoned. Default 0s.
	DrafterRow Duration `yaml:"drafter_row" min:"0s"`
	// Update is how long the optimiser takes; 0s: reckoned. Default 0s.
	Update Duration `yaml:"update" min:"0s"`
	// HandOff is how long a row takes from one device to another; 0s: reckoned. Default 0s.
	HandOff Duration `yaml:"hand_off" min:"0s"`
}

// costs wants one source of them.
func (k *checker) costs() {
	c := k.Costs
	if c.From != "" && (c.TargetRow != 0 || c.DrafterRow != 0 || c.Update != 0 || c.HandOff != 0) {
		k.add("costs.from", "remove one of the two", "want a file or costs of their own, got both")
	}
	if (c.TargetRow == 0) != (c.DrafterRow == 0) {
		k.add("costs.target_row", "one measured beside one reckoned says nothing about their balance", "want target_row and drafter_row together, got one of them")
	}
}
