package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// Scheduling says which plugin is to be measured, and how.
type Scheduling struct {
	Run    Pipeline // Steps and Set of both runs
	Plugin string   // path of a program; empty: Run.Self with FirstCommand
	Args   []string // of the program
	Calls  int      // questions of each kind
	Rounds int      // of a run without and a run with the plugin
}

// FirstCommand are the arguments with which this program is the plugin that
// decides as the built-in does, so that what it costs is the asking alone.
var FirstCommand = []string{"bench", "scheduler-plugin"}

// first decides as the built-in does.
type first struct{ scheduler.Base }

// Info says who this is.
func (first) Info() scheduler.Info { return scheduler.Info{Name: "first", Version: "1.0.0"} }

// Arrange keeps the built-in's order.
func (first) Arrange(_ context.Context, q scheduler.ArrangeRequest) ([]runner.Sample, error) {
	return scheduler.First(q), nil
}

// Assign takes the first target that is free.
func (first) Assign(_ context.Context, q scheduler.AssignRequest) (runner.Worker, error) {
	return q.Free[0], nil
}

// ServeFirst is the main of that plugin.
func ServeFirst() { scheduler.Serve(first{}) }

// SchedulerBench measures what a plugin's answers take, and what they cost a
// run on CPU workers: the same run without it and with it, in turns.
func SchedulerBench(ctx context.Context, p *Python, o Scheduling) (*Report, error) {
	r := start("scheduler")
	path, args := o.Plugin, o.Args
	if path == "" {
		path, args = o.Run.Self, FirstCommand
	}
	e, err := host.Pin(path, args...)
	if err != nil {
		return nil, err
	}
	name, err := r.calls(ctx, p, e, o.Calls)
	if err != nil {
		return nil, err
	}
	base := append([]string{fmt.Sprintf("training.steps=%d", o.Run.Steps), "training.epochs=0", "workers.targets=2",
		"python.interpreter=" + quote(p.interpreter)}, o.Run.Set...)
	more, file, err := p.shipped(ctx, Devices{}, Pipeline{}, base)
	if err != nil {
		return nil, err
	}
	base = append(more, base...)
	plugged := fmt.Sprintf("scheduler.plugins=[{name: %s, path: %s, sha256: %s, args: [", name, quote(e.Program.Path), e.Program.SHA256)
	for i, a := range args {
		plugged += map[bool]string{true: ", ", false: ""}[i > 0] + quote(a)
	}
	both := [2]sides{{name: "without"}, {name: "with", set: []string{plugged + "]}]", "scheduler.use=" + name, "scheduler.required=true"}}}
	for round := range o.Rounds {
		for i := range both {
			if err := both[i].run(ctx, p, o.Run, file, base, round); err != nil {
				return nil, err
			}
		}
	}
	r.schedules(name, &both[0], &both[1])
	r.Torch, r.Versions["python"] = p.torch, p.version
	return r.done(), nil
}

// sides are the runs without the plugin, or with it.
type sides struct {
	name           string
	set            []string
	steps          []time.Duration // between decisions
	rows, seconds  float64
	calls, refused uint64
}

// run is one `up`.
func (s *sides) run(ctx context.Context, p *Python, o Pipeline, file string, base []string, round int) error {
	root := filepath.Join(p.dir, fmt.Sprintf("%s-%d", s.name, round))
	o.root = root
	set := append(append([]string{"run.directory=" + quote(root)}, base...), s.set...)
	environment := append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(p.dir, "cache")) // its data is never met again
	if err := o.run(ctx, p, environment, file, set); err != nil {
		return err
	}
	dir := filepath.Join(root, pipelineName)
	told, err := toldBy(ctx, filepath.Join(dir, "events.jsonl"))
	if err != nil {
		return err
	}
	decided := told.decided
	if len(decided) < 2 {
		return runner.Errorf(runner.Invalid, "read figures of run %s: want at least 2 decided steps, got %d", s.name, len(decided))
	}
	for i, d := range decided[1:] {
		s.steps = append(s.steps, d.At.Sub(decided[i].At))
		s.rows += d.Rows
	}
	s.seconds += decided[len(decided)-1].At.Sub(decided[0].At).Seconds()
	state, err := admin.ReadStatus(dir)
	if err != nil {
		return err
	}
	if state.Plugin != nil {
		s.calls, s.refused = s.calls+uint64(state.Plugin.Calls), s.refused+uint64(state.Plugin.Refused)
	}
	return nil
}

// schedules adds what the runs came to.
func (r *Report) schedules(name string, without, with *sides) {
	rate := func(s *sides) float64 { return s.rows / s.seconds }
	r.add("rows a second without a plugin", rate(without), "rows/s", 0, nil)
	r.add("rows a second with it", rate(with), "rows/s", rate(with)/rate(without), nil)
	plain, plugged := quantile(sortedCopy(without.steps), 0.5), quantile(sortedCopy(with.steps), 0.5)
	r.add("step without a plugin p50", micro(plain)/1000, "ms", 0, nil)
	r.add("step with it p50", micro(plugged)/1000, "ms", float64(plugged)/float64(plain), &Goal{Limit: 1.03, OfRatio: true})
	r.add("questions a step", float64(with.calls)/float64(len(with.steps)), "questions", 0, nil)
	r.add("answers refused", float64(with.refused), "answers", 0, atMost(0))
	r.Facts["plugin"], r.Facts["steps"] = name, fmt.Sprintf("%d without and %d with it", len(without.steps), len(with.steps))
}
