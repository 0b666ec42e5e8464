// Package bench measures what the README promises in numbers: each measurement
// beside a plain baseline, in the same run.
package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// Report is what one bench found: a JSON object for machines, a table for
// people. Fields are only added, and every field is there in every report.
type Report struct {
	Bench    string            `json:"bench"`
	Commit   string            `json:"commit"` // of this program; unknown where it was built without one
	Device   string            `json:"device"` // cpu, or the names of GPUs
	Torch    string            `json:"torch"`  // "" where none took part
	Versions map[string]string `json:"versions"`
	Shape    *Shape            `json:"shape"` // null where no shape takes part
	Facts    map[string]string `json:"facts"` // what was measured, in words
	Cores    int               `json:"cores"`
	Load     [2]float64        `json:"load"` // of one minute, before and after
	Figures  []Figure          `json:"figures"`
	Parts    []Part            `json:"parts"` // what both sides' figures include; empty where there is one side
}

// Figure is one number. Ratio is to the baseline measured beside it.
type Figure struct {
	Name  string   `json:"name"`
	Value float64  `json:"value"`
	Unit  string   `json:"unit"`
	Ratio *float64 `json:"ratio"`
	Goal  *Goal    `json:"goal"`
	Met   *bool    `json:"met"`
}

// Goal bounds a figure, or its ratio where OfRatio says so.
type Goal struct {
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // else at most
	OfRatio bool    `json:"of_ratio"`
}

// start begins a report.
func start(bench string) *Report {
	return &Report{Bench: bench, Device: placement.CPU, Cores: runtime.NumCPU(), Load: [2]float64{load(), math.NaN()},
		Versions: map[string]string{"go": runtime.Version()}, Facts: map[string]string{}, Figures: []Figure{}, Parts: []Part{}}
}

// add puts a figure in; ratio 0 is none.
func (r *Report) add(name string, value float64, unit string, ratio float64, goal *Goal) {
	f := Figure{Name: name, Value: value, Unit: unit, Goal: goal}
	if ratio != 0 {
		f.Ratio = &ratio
	}
	if goal != nil {
		at := value
		if goal.OfRatio {
			at = ratio
		}
		met := at <= goal.Limit
		if goal.AtLeast {
			met = at >= goal.Limit
		}
		f.Met = &met
	}
	r.Figures = append(r.Figures, f)
}

// done ends a report.
func (r *Report) done() *Report {
	r.Load[1] = load()
	return r
}

// goalOn is a goal that holds under a condition only, else none.
func goalOn(holds bool, g *Goal) *Goal {
	if holds {
		return g
	}
	return nil
}

func atMost(limit float64) *Goal       { return &Goal{Limit: limit} }
func atLeast(limit float64) *Goal      { return &Goal{Limit: limit, AtLeast: true} }
func ratioAtLeast(limit float64) *Goal { return &Goal{Limit: limit, AtLeast: true, OfRatio: true} }

// Write prints the table.
func (r *Report) Write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tmeasured\tunit\tratio\tgoal\t")
	for _, f := range r.Figures {
		ratio, goal := "", ""
		if f.Ratio != nil {
			ratio = fmt.Sprintf("%.2f", *f.Ratio)
		}
		if f.Goal != nil {
			goal = f.Goal.String() + map[bool]string{true: "  met", false: "  MISSED"}[*f.Met]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", f.Name, number(f.Value), f.Unit, ratio, goal)
	}
	if len(r.Parts) > 0 {
		fmt.Fprintln(t, "\nincluded\tours\ttheirs\t")
	}
	for _, p := range r.Parts {
		fmt.Fprintf(t, "%s\t%s\t%s\t\n", p.Name, p.Ours, p.Theirs)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	about := append(sorted(r.Facts), sorted(r.Versions)...)
	if r.Shape != nil {
		about = append([]string{r.Shape.String()}, about...)
	}
	if r.Torch != "" {
		about = append(about, "torch "+r.Torch)
	}
	if r.Commit != "" {
		about = append(about, "commit "+r.Commit)
	}
	_, err := fmt.Fprintf(w, "%s; on %s, %d cores, load %.2f before and %.2f after\n", strings.Join(about, ", "), r.Device, r.Cores, r.Load[0], r.Load[1])
	return err
}

// sorted gives names and values, by name.
func sorted(of map[string]string) []string {
	out := make([]string, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out = append(out, name+" "+of[name])
	}
	return out
}

// String gives the bound as a table shows it.
func (g *Goal) String() string {
	sign, of := "<=", ""
	if g.AtLeast {
		sign = ">="
	}
	if g.OfRatio {
		of = "ratio "
	}
	return of + sign + " " + number(g.Limit)
}

// number writes at least three digits that count.
func number(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// quantile gives the smallest sample that is not below a share p of all.
// sorted is ascending and not empty.
func quantile[T any](sorted []T, p float64) T {
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

// latencies adds quantiles of samples, in microseconds, with goals by their
// names; base holds another's samples, or none.
func (r *Report) latencies(name string, samples, base []time.Duration, goals map[string]*Goal) {
	samples, base = sortedCopy(samples), sortedCopy(base)
	for _, q := range []struct {
		name string
		p    float64
	}{{"p10", 0.1}, {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}} {
		at, ratio := quantile(samples, q.p), 0.0
		if len(base) > 0 {
			ratio = float64(at) / float64(quantile(base, q.p))
		}
		r.add(name+" "+q.name, micro(at), "us", ratio, goals[q.name])
	}
}

func sortedCopy(in []time.Duration) []time.Duration {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// load gives the load average of the last minute, 0 where there is none.
func load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseFloat(strings.SplitN(string(text), " ", 2)[0], 64)
	return v
}
