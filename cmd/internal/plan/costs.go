package plan

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/placement"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// What is assumed where nothing was measured, from what was (python/bench/LOG.md).
const (
	updateBytes     = 30       // of memory that the update moves for an element
	gpuMemoryBytesS = 3.8e12   // of an H200, by the update
	cpuMemoryBytesS = 8e9      // of one core
	gpuPeerBytesS   = 330e9    // between two GPUs
	hostBytesS      = 5e9      // through host memory
	busBytesS       = 25e9     // from a GPU to the host, half of what its bus has
	readRowMS       = 1.1      // waits and launches of reading a row, beside the copy
	voteMS          = 1.0      // figures, votes, decision
	orderMS         = 0.1      // an order's way
	sumBytesS       = 150e9    // of a sum over NVLink: each GPU sends and receives every element
	sumOpen         = 1.0 / 17 // of the sum is left when the backward ends
)

// Costs gives what work takes for a configuration, as a trace of one row or
// more. text is the file that costs.from names, and empty without one; then come
// the costs that the configuration gives, and what it leaves out is reckoned
// from the arithmetic. Its Source says which.
func Costs(c *config.Config, target config.Model, text []byte) (simulate.Trace, error) {
	w, err := workOf(c, target)
	if err != nil {
		return simulate.Trace{}, err
	}
	reckoned := w.reckon()
	if len(text) == 0 {
		return w.configured(reckoned), nil
	}
	var t simulate.Trace
	if isSummary(text) {
		t, err = measured(text, reckoned)
	} else {
		t, err = simulate.Parse(text)
	}
	if err == nil {
		err = sameShape(t.Shape, reckoned.Shape)
	}
	if err != nil {
		return simulate.Trace{}, fmt.Errorf("costs of %s: %w", c.Run.Name, err)
	}
	return t, nil
}

// sameShape refuses costs of another workload; 0 is one that is not known.
func sameShape(got, want simulate.Shape) error {
	for _, x := range []struct {
		what      string
		got, want int
	}{{"bucket", got.Bucket, want.Bucket}, {"anchors", got.Anchors, want.Anchors}, {"block", got.Block, want.Block}, {"vocabulary", got.Vocabulary, want.Vocabulary}} {
		if x.got != 0 && x.got != x.want {
			return runner.Errorf(runner.Invalid, "shape.%s: want the configuration's %d, got %d", x.what, x.want, x.got).
				WithHint("costs hold for the shapes that they were measured with")
		}
	}
	return nil
}

// reckon works the costs out from arithmetic and bytes.
func (w work) reckon() simulate.Trace {
	c := w.config
	rate, memory, peer, host := coreFLOPs*float64(c.Workers.Threads), cpuMemoryBytesS, float64(hostBytesS), float64(hostBytesS)
	if w.cuda {
		rate, memory, peer, host = gpuFLOPs, gpuMemoryBytesS, gpuPeerBytesS, busBytesS
	}
	trained := float64(w.drafter.Trained(w.captured))
	costs := simulate.Costs{UpdateMS: 1000 * trained * updateBytes / memory, VoteMS: voteMS, OrderMS: orderMS, ImageEvery: c.Images.EverySteps,
		HandOffMS: 1000*float64(w.rows.SlotBytes)/peer + readRowMS, HandOffLocalMS: readRowMS}
	if w.cuda {
		costs.SumMS = 1000 * 2 * 4 * trained / sumBytesS * sumOpen
	} else {
		costs.HandOffLocalMS = costs.HandOffMS
		costs.SumMS = 1000 * 2 * 4 * trained / hostBytesS
	}
	// Only the copy keeps a commit waiting.
	costs.ImageMS = 1000 * float64(placement.ImageBytes(w.drafter, w.captured)) / host
	bucket := int(w.rows.Bucket)
	return simulate.Trace{Format: simulate.Format, Name: "reckoned", Source: fmt.Sprintf("reckoned from the arithmetic at %.0f GFLOP/s a worker, nothing measured", rate/1e9), Costs: costs,
		Shape: simulate.Shape{Bucket: bucket, Anchors: int(w.rows.Anchors) * w.config.Training.DrawsPerRow, Block: int(w.rows.BlockSize), Vocabulary: int(w.target.Vocab)},
		Rows:  []simulate.Row{{Tokens: bucket, TargetMS: 1000 * w.targetRow() / rate, DrafterMS: 1000 * w.drafterRow() / rate}}}
}

// configured puts the configuration's own costs in the place of reckoned ones.
func (w work) configured(t simulate.Trace) simulate.Trace {
	c := w.config.Costs
	var given []string
	set := func(name string, d config.Duration, at *float64) {
		if d > 0 {
			*at = float64(d.D().Nanoseconds()) / 1e6
			given = append(given, name)
		}
	}
	set("target_row", c.TargetRow, &t.Rows[0].TargetMS)
	set("drafter_row", c.DrafterRow, &t.Rows[0].DrafterMS)
	set("update", c.Update, &t.Costs.UpdateMS)
	set("hand_off", c.HandOff, &t.Costs.HandOffMS)
	if len(given) > 0 {
		t.Name, t.Source = "configuration", fmt.Sprintf("the configuration's costs: %s; the rest is %s", strings.Join(given, ", "), t.Source)
	}
	return t
}

// isSummary tells a run's summary from a trace.
func isSummary(text []byte) bool {
	var s struct {
		Exit    *int            `json:"exit"`
		Workers json.RawMessage `json:"workers"`
	}
	return json.Unmarshal(text, &s) == nil && s.Exit != nil && len(s.Workers) > 0
}

// measured reads the costs of a run off its summary: what workers computed, by
// the rows that went from a target to a drafter. A resumed run's rows and steps
// are those of all its lives, so their ratio alone is used.
func measured(text []byte, t simulate.Trace) (simulate.Trace, error) {
	var s admin.Summary
	if err := json.Unmarshal(text, &s); err != nil {
		return t, runner.Errorf(runner.Invalid, "read summary: %w", err)
	}
	rows, drafters, bucket := 0.0, 0.0, t.Shape.Bucket
	if s.BlocksPerRow > 0 { // else the summary is from before it was told
		t.Shape.Anchors = s.BlocksPerRow
	}
	for _, a := range s.Arenas {
		rows += float64(a.HandOffs)
	}
	spent := map[string]float64{}
	for _, w := range s.Workers {
		if w.Role == runner.Drafter {
			drafters++
		}
		for what, seconds := range w.Usage {
			spent[what] += seconds
		}
		if c := w.Certificate; c != nil && len(c.Buckets) > 0 && int(c.Buckets[len(c.Buckets)-1]) != bucket {
			t.Shape.Bucket = int(c.Buckets[len(c.Buckets)-1])
		}
	}
	if rows == 0 || s.Rows == 0 || s.Steps == 0 || drafters == 0 || spent["produce"] == 0 || spent["train"] == 0 {
		return t, runner.Errorf(runner.Invalid, "read summary: want a run that trained, got %d rows of %d steps", s.Rows, s.Steps)
	}
	steps := rows * float64(s.Steps) / float64(s.Rows)
	t.Name, t.Measured = "summary of "+s.Name, true
	t.Costs.SumMS = 0 // is in what was measured of training
	t.Costs.UpdateMS = 1000 * spent["commit"] / (steps * drafters)
	t.Costs.OrderMS = 0 // so is an order's way
	votes := "votes and hand-offs are reckoned"
	if drafters == 1 { // with others the wait for them is in it
		t.Costs.VoteMS, votes = 1000*spent["vote"]/steps, "votes too; hand-offs are reckoned"
	}
	t.Rows = []simulate.Row{{Tokens: int(s.Tokens / s.Rows), TargetMS: 1000 * spent["produce"] / rows, DrafterMS: 1000 * spent["train"] / rows}}
	t.Source = fmt.Sprintf("measured by run %s over %.0f rows: rows and update, sum of gradients included; %s", s.Name, rows, votes)
	return t, nil
}
