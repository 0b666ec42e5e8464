package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Format is the version of a trace's form.
const Format = 1

// Trace says what the work of a run costs, as JSON with these fields and no
// other. Times are in milliseconds of the device that does the work.
type Trace struct {
	Format int    `json:"format"` // 1
	Name   string `json:"name"`
	// Source says where the costs come from, for people: what was measured, where,
	// and what was reckoned from it.
	Source string `json:"source"`
	// Measured says that target_ms and drafter_ms were measured on such a device.
	Measured bool   `json:"measured"`
	Shape    Shape  `json:"shape"`
	Costs    Costs  `json:"costs"`
	Rows     []Row  `json:"rows"` // in the order of training, again from the first where a run has more
	Slow     []Slow `json:"slow,omitempty"`
}

// Shape is the workload that costs are stated for; 0: not known.
type Shape struct {
	Bucket     int `json:"bucket"`  // tokens of a row, padding included
	Anchors    int `json:"anchors"` // blocks that a row trains, in all draws
	Block      int `json:"block"`
	Vocabulary int `json:"vocabulary"`
}

// Costs are those that do not depend on the row.
type Costs struct {
	UpdateMS       float64 `json:"update_ms"`         // the optimiser's, of one commit
	SumMS          float64 `json:"sum_ms"`            // of gradients beyond the backward, over very many drafters; n pay (n-1)/n of it
	VoteMS         float64 `json:"vote_ms"`           // from a rank's last micro-step to the decision
	OrderMS        float64 `json:"order_ms"`          // from an order to its work, of every order
	HandOffMS      float64 `json:"hand_off_ms"`       // of a row between two devices of a node
	HandOffLocalMS float64 `json:"hand_off_local_ms"` // on one device
	ImageMS        float64 `json:"image_ms"`          // of a copy beside training
	ImageEvery     int     `json:"image_every"`       // steps; 0: never
}

// Row is one packed row.
type Row struct {
	Tokens    int     `json:"tokens"` // of samples, without padding
	TargetMS  float64 `json:"target_ms"`
	DrafterMS float64 `json:"drafter_ms"` // forward and backward
}

// Slow is a device on which everything takes a factor longer.
type Slow struct {
	Node   int     `json:"node"`
	Device int     `json:"device"`
	Factor float64 `json:"factor"`
}

// maxMS bounds a cost: a day.
const maxMS = 86_400_000

// Parse reads a trace. An unknown field, a missing one that must be there and a
// cost that is no time are of kind invalid.
func Parse(text []byte) (Trace, error) {
	var t Trace
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return Trace{}, runner.Errorf(runner.Invalid, "read trace: %w", err)
	}
	if d.More() {
		return Trace{}, runner.Errorf(runner.Invalid, "read trace: want one JSON object, got more after it")
	}
	return t, t.Check()
}

// Check refuses what no run can be simulated from.
func (t Trace) Check() error {
	bad := func(path, format string, a ...any) error {
		return runner.Errorf(runner.Invalid, "read trace: %s: %s", path, fmt.Sprintf(format, a...))
	}
	if t.Format != Format {
		return bad("format", "want %d, got %d", Format, t.Format)
	}
	if len(t.Rows) == 0 {
		return bad("rows", "want at least one row, got none")
	}
	c := t.Costs
	for name, ms := range map[string]float64{"update_ms": c.UpdateMS, "sum_ms": c.SumMS, "vote_ms": c.VoteMS, "order_ms": c.OrderMS,
		"hand_off_ms": c.HandOffMS, "hand_off_local_ms": c.HandOffLocalMS, "image_ms": c.ImageMS} {
		if !(ms >= 0 && ms <= maxMS) {
			return bad("costs."+name, "want 0 to %d, got %g", maxMS, ms)
		}
	}
	if c.ImageEvery < 0 {
		return bad("costs.image_every", "want at least 0, got %d", c.ImageEvery)
	}
	for i, r := range t.Rows {
		if !(r.TargetMS > 0 && r.TargetMS <= maxMS && r.DrafterMS > 0 && r.DrafterMS <= maxMS) || r.Tokens < 0 {
			return bad(fmt.Sprintf("rows[%d]", i), "want times above 0 and tokens from 0, got %g and %g ms, %d tokens", r.TargetMS, r.DrafterMS, r.Tokens)
		}
	}
	for i, s := range t.Slow {
		if !(s.Factor >= 0.01 && s.Factor <= 100) || s.Node < 0 || s.Device < 0 {
			return bad(fmt.Sprintf("slow[%d]", i), "want a device and a factor from 0.01 to 100, got node %d, device %d, %g", s.Node, s.Device, s.Factor)
		}
	}
	return nil
}

// Mean gives the mean row.
func (t Trace) Mean() Row {
	var m Row
	for _, r := range t.Rows {
		m.Tokens += r.Tokens
		m.TargetMS += r.TargetMS
		m.DrafterMS += r.DrafterMS
	}
	n := float64(max(1, len(t.Rows)))
	return Row{Tokens: int(math.Round(float64(m.Tokens) / n)), TargetMS: m.TargetMS / n, DrafterMS: m.DrafterMS / n}
}

// row gives row k of a run, from 0.
func (t *Trace) row(k int) *Row { return &t.Rows[k%len(t.Rows)] }

// ms makes a time of milliseconds, in whole nanoseconds.
func ms(x float64) time.Duration { return time.Duration(math.Round(x * 1e6)) }
