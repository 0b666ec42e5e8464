package probe

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strings"
	"unicode"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// Bounds of one line, whatever a child prints.
const (
	maxText      = 200
	maxProcesses = 64
	maxReasons   = 16
)

// line is what the child prints: devices, or why there are none.
type line struct {
	Devices []device `json:"devices"`
	Error   string   `json:"error"`
	Hint    string   `json:"hint"`
}

// device is one GPU's sample; what is not known is nil.
type device struct {
	UUID           string          `json:"uuid"`
	Error          *string         `json:"error"`
	Name           *string         `json:"name"`
	Utilisation    *float64        `json:"utilisation"`
	MemoryUsed     *uint64         `json:"memory_used_bytes"`
	MemoryTotal    *uint64         `json:"memory_total_bytes"`
	PowerW         *float64        `json:"power_w"`
	PowerLimitW    *float64        `json:"power_limit_w"`
	TemperatureC   *float64        `json:"temperature_c"`
	ECCCorrected   *uint64         `json:"ecc_corrected"`
	ECCUncorrected *uint64         `json:"ecc_uncorrected"`
	Throttle       []string        `json:"throttle"`
	Recovery       *string         `json:"recovery_action"`
	Processes      []admin.GPUUser `json:"processes"`
	ProcessCount   *uint64         `json:"process_count"`
}

// parse reads one line, strictly: what has another shape, or figures that
// cannot be, is an error.
func parse(text []byte, uuids []string) (l line, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, runner.Errorf(runner.Invalid, "read sample: want one JSON object of devices: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return l, runner.Errorf(runner.Invalid, "read sample: want one JSON object a line, got more")
	}
	if l.Error != "" {
		return line{Error: clean(l.Error), Hint: clean(l.Hint)}, nil
	}
	if len(l.Devices) != len(uuids) {
		return l, runner.Errorf(runner.Invalid, "read sample: want %d devices, got %d", len(uuids), len(l.Devices))
	}
	for i := range l.Devices {
		if got := l.Devices[i].UUID; got != uuids[i] {
			return l, runner.Errorf(runner.Invalid, "read sample: devices[%d]: want %s, got %s", i, uuids[i], clean(got))
		}
		if err := l.Devices[i].check(); err != nil {
			return l, err
		}
	}
	return l, nil
}

// check refuses figures that cannot be, and bounds texts and lists.
func (d *device) check() error {
	for _, x := range []struct {
		name     string
		value    *float64
		low, top float64
	}{{"utilisation", d.Utilisation, 0, 100}, {"power_w", d.PowerW, 0, 1e5}, {"power_limit_w", d.PowerLimitW, 0, 1e5}, {"temperature_c", d.TemperatureC, -273, 1000}} {
		if v := x.value; v != nil && !(*v >= x.low && *v <= x.top && !math.IsNaN(*v)) {
			return runner.Errorf(runner.Invalid, "read sample: %s: want %g to %g, got %g", x.name, x.low, x.top, *v)
		}
	}
	if d.MemoryUsed != nil && d.MemoryTotal != nil && *d.MemoryUsed > *d.MemoryTotal {
		return runner.Errorf(runner.Invalid, "read sample: memory_used_bytes: want at most %d, got %d", *d.MemoryTotal, *d.MemoryUsed)
	}
	if len(d.Processes) > maxProcesses || len(d.Throttle) > maxReasons {
		return runner.Errorf(runner.Invalid, "read sample: want at most %d processes and %d reasons, got %d and %d", maxProcesses, maxReasons, len(d.Processes), len(d.Throttle))
	}
	for i := range d.Throttle {
		d.Throttle[i] = clean(d.Throttle[i])
	}
	for _, text := range []*string{d.Error, d.Name, d.Recovery} {
		if text != nil {
			*text = clean(*text)
		}
	}
	return nil
}

// clean bounds a text and takes out what would drive a terminal.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > maxText {
		return string(r[:maxText]) + "..."
	}
	return s
}
