package simulate

import (
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Result is a simulated run, from the first order to the last commit.
type Result struct {
	Makespan time.Duration
	Rows     int
	Tokens   int // without padding
	// Used is every worker's time by cause: node by node, targets then drafters. It
	// adds up to the makespan.
	Used  [][causes]time.Duration
	Ends  []time.Duration // of each step, when its last rank had committed
	Spans []Span          // where a trail was asked for, and
	Pulls []Pull

	setup Setup
}

// RowsPerS gives rows a second.
func (r Result) RowsPerS() float64 { return float64(r.Rows) / r.Makespan.Seconds() }

// SteadyRowsPerS gives rows a second after the first steps, in which slots and
// buffers fill; there must be more than those.
func (r Result) SteadyRowsPerS(after int) float64 {
	rows := r.setup.RowsPerStep * (len(r.Ends) - after)
	return float64(rows) / (r.Makespan - r.Ends[after-1]).Seconds()
}

// TokensPerS gives context tokens a second, padding not counted.
func (r Result) TokensPerS() float64 { return float64(r.Tokens) / r.Makespan.Seconds() }

// Report is the result as JSON.
type Report struct {
	Predicted  bool    `json:"predicted"` // always true: nothing here was measured
	Trace      string  `json:"trace"`
	Source     string  `json:"source"`
	Shape      Shape   `json:"shape"`
	Nodes      int     `json:"nodes"`
	Devices    int     `json:"devices"` // of a node
	Targets    int     `json:"targets"`
	Drafters   int     `json:"drafters"`
	Steps      int     `json:"steps"`
	Rows       int     `json:"rows"`
	Seconds    float64 `json:"seconds"`
	RowsPerS   float64 `json:"rows_per_s"`
	TokensPerS float64 `json:"tokens_per_s"`
	Bound      Bound   `json:"bound"`
	IdleShare  float64 `json:"idle_share"` // of all devices' turns
	Workers    []Usage `json:"workers"`
}

// Usage is one worker's time.
type Usage struct {
	Node   int                `json:"node"`
	Name   runner.Worker      `json:"name"`
	Device int                `json:"device"`
	Busy   float64            `json:"busy_share"`
	Shares map[string]float64 `json:"shares"` // of the time, by cause
}

// Report adds up a result.
func (r Result) Report() Report {
	s := r.setup
	targets, drafters := s.count()
	out := Report{Predicted: true, Trace: s.Trace.Name, Source: s.Trace.Source, Shape: s.Trace.Shape, Nodes: s.Nodes, Devices: len(s.Turns), Targets: targets, Drafters: drafters,
		Steps: s.Steps, Rows: r.Rows, Seconds: r.Makespan.Seconds(), RowsPerS: r.RowsPerS(), TokensPerS: r.TokensPerS(), Bound: s.Bound(), IdleShare: r.IdleShare()}
	whole := r.Makespan.Seconds()
	for i, used := range r.Used {
		at := ordered(s.Workers)[i%len(s.Workers)]
		u := Usage{Node: i / len(s.Workers), Name: at.Worker, Device: at.Device, Shares: map[string]float64{}}
		for c, t := range used {
			if t > 0 {
				u.Shares[Cause(c).String()] = t.Seconds() / whole
			}
			if Cause(c).Works() {
				u.Busy += t.Seconds() / whole
			}
		}
		out.Workers = append(out.Workers, u)
	}
	return out
}

// Work is the time that devices computed, all together.
func (r Result) Work() (sum time.Duration) {
	for _, used := range r.Used {
		for c, t := range used {
			if Cause(c).Works() {
				sum += t
			}
		}
	}
	return sum
}

// IdleShare is the share of all devices' turns in which nothing computed.
func (r Result) IdleShare() float64 { return idleShare(r.setup, r.Makespan, r.Work()) }

func idleShare(s Setup, makespan, work time.Duration) float64 {
	turns := 0
	for _, t := range s.Turns {
		turns += t
	}
	return 1 - work.Seconds()/(makespan.Seconds()*float64(turns*s.Nodes))
}

// ordered gives workers as the simulation has them: targets, then drafters.
func ordered(all []Worker) (out []Worker) {
	for _, role := range []runner.Role{runner.Target, runner.Drafter} {
		for _, w := range all {
			if w.Worker.Role == role {
				out = append(out, w)
			}
		}
	}
	return out
}
