package up

import (
	"context"
	"iter"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	gops "github.com/shirou/gopsutil/v3/process"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
)

// viewWait bounds how long a status waits for the loop, which never waits for
// anything itself.
const viewWait = 500 * time.Millisecond

// residentAge is how old a worker's memory may be in a status.
const residentAge = time.Second

var _ admin.Source = (*up)(nil)

// Status gives the newest picture of the run. From any goroutine.
func (u *up) Status() admin.Status {
	ctx, cancel := context.WithTimeout(context.Background(), viewWait)
	defer cancel()
	u.refresh(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last
}

// Stop asks the run to end. See admin.Source.
func (u *up) Stop(mode admin.Mode) error {
	u.stop(mode == admin.Quick, "down")
	return nil
}

// Checkpoint asks for a checkpoint of the next step. See admin.Source.
func (u *up) Checkpoint() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.loop == nil || u.ended != nil {
		return runner.Errorf(runner.Unavailable, "make checkpoint: the run does not train now")
	}
	u.loop.Checkpoint()
	return nil
}

// Events streams events.jsonl. See admin.Source.
func (u *up) Events(ctx context.Context, after uint64, follow bool) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line, err := range admin.Tail(ctx, u.dir.join("events.jsonl"), after, follow, u.isOver) {
			if err != nil || !yield(line) {
				return
			}
		}
	}
}

func (u *up) isOver() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state.Over()
}

// Metrics answers in the Prometheus text format. See admin.Source.
func (u *up) Metrics() http.Handler { return u.metrics }

// refresh takes a new picture, from the loop where there is one.
func (u *up) refresh(ctx context.Context) {
	u.mu.Lock()
	loop := u.loop
	u.mu.Unlock()
	var v drive.View
	ok := false
	if loop != nil {
		v, ok = loop.View(ctx)
	}
	if ok {
		u.follow(v)
	}
	stages, running := u.board.picture()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := &u.last
	s.Stages, s.Stage, s.State = stages, running, u.state
	s.UpdatedAt = time.Now()
	if u.watch != nil {
		s.Devices = u.watch.Devices(s.UpdatedAt)
	}
	if ok {
		u.fill(s, v)
	} else if loop != nil {
		s.Degraded = append(slices.Clone(u.warnings), admin.Reason{Name: "loop", Detail: "did not answer in time"})
	} else {
		s.Degraded = slices.Clone(u.warnings)
	}
	if ok || loop == nil { // else what was known last stays
		s.Decisions = u.decisionsOf(v)
	}
	u.pluginStatus(s)
}

// follow moves the stages along with the run.
func (u *up) follow(v drive.View) {
	certified := 0
	for _, w := range v.Workers {
		if w.Certificate.Fingerprint != "" {
			certified++
		}
	}
	b := u.board
	if len(v.Gate.Sequence) > 0 {
		b.done("launch")
		b.begin("warm_up")
		b.count("warm_up", uint64(certified), uint64(len(v.Workers)))
	}
	if certified == len(v.Workers) {
		b.done("warm_up")
	}
	b.evaluation("evaluate_before", v.Moments.Before, v.Ending)
	b.evaluation("evaluate_after", v.Moments.After, v.Ending)
	if v.Steps > 0 {
		b.count("train", uint64(v.Step), uint64(v.Steps))
	}
	if at := v.Moments.Training; !at.IsZero() {
		b.beginAt("train", at)
		u.trains()
	}
	if at := v.Moments.Decided; !at.IsZero() && v.Steps > 0 && v.Step >= v.Steps {
		b.doneAt("train", at)
	}
}

// trains leaves the state before training.
func (u *up) trains() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state == admin.Starting {
		u.state = admin.Training
	}
}

// fill copies a view into the status. Under the lock.
func (u *up) fill(s *admin.Status, v drive.View) {
	now := time.Now()
	s.Step, s.StepsTotal, s.Epoch, s.Lineage = v.Step, v.Steps, v.Epoch, v.Lineage
	s.RowsCommitted, s.Skipped, s.Scheduler = v.Rows, v.Skipped, v.Scheduler
	s.Failures = u.deaths.with(v.Failures)
	if v.Trained {
		s.Loss = &v.LossLast
	}
	s.Losses, s.Sources = lossesOf(u.sources, v.Losses), len(u.sources)
	u.rate.add(now, v.Tokens)
	s.TokensPerS = u.rate.perSecond()
	s.Acceptance, s.AcceptanceAt = acceptanceOf(v.Evaluations)
	s.HeldoutLoss, _ = heldoutOf(v.Evaluations)
	s.ImageStall = stallOf(v.Stalls)
	s.Workers, s.Gate, s.Arenas, s.Images = u.workers(v, now), gateOf(v, now), arenasOf(v), imagesOf(v)
	s.Restored = restoredOf(v.Restored)
	s.Checkpoint = nil
	if c := u.store.last(); c != nil {
		s.Checkpoint = &admin.CheckpointStatus{Name: c.name, Step: c.step, At: c.at}
	}
	s.Degraded = slices.Clone(u.warnings)
	for _, d := range v.Degraded {
		s.Degraded = append(s.Degraded, admin.Reason{Name: "run", Detail: d})
	}
	for name, d := range v.Worse {
		s.Degraded = append(s.Degraded, admin.Reason{Name: name, Detail: d})
	}
}

func (u *up) workers(v drive.View, now time.Time) []admin.WorkerStatus {
	out := make([]admin.WorkerStatus, 0, len(v.Workers))
	for _, w := range v.Workers {
		s := admin.WorkerStatus{Name: w.Worker, Role: w.Worker.Role, Pid: v.Pids[runner.Life{Worker: w.Worker, Generation: w.Generation}],
			Generation: w.Generation, State: w.State, Device: w.Device, Order: w.Order, Restarts: w.Strikes}
		if !w.Since.IsZero() {
			s.SinceMS = now.Sub(w.Since).Milliseconds()
		}
		if w.Certificate.Fingerprint != "" {
			c := w.Certificate
			s.Certificate = &c
		}
		if s.Pid > 0 {
			s.RSSBytes = u.resident.of(s.Pid, now)
		}
		if w.State == "warming" || w.State == "launching" {
			s.Phase = u.phases[w.Worker]
		}
		out = append(out, s)
	}
	return out
}

// residents remembers what processes hold in memory, as several readers ask for
// it every moment and each look costs some files of /proc. Not for concurrent use.
type residents map[int]resident

type resident struct {
	bytes uint64
	at    time.Time
}

// of gives what a process holds in memory, at most residentAge old.
func (r *residents) of(pid int, now time.Time) uint64 {
	last, ok := (*r)[pid]
	if !ok || now.Sub(last.at) >= residentAge {
		last = resident{rss(pid), now}
		if *r == nil {
			*r = residents{}
		}
		(*r)[pid] = last
	}
	return last.bytes
}

// rss is a process's resident memory, 0 when it is gone.
func rss(pid int) uint64 {
	p := gops.Process{Pid: int32(pid)}
	m, err := p.MemoryInfo()
	if err != nil {
		return 0
	}
	return m.RSS
}

func gateOf(v drive.View, now time.Time) admin.GateStatus {
	g := admin.GateStatus{Width: v.Gate.Width, Holders: []runner.Worker{}, Queue: []admin.Queued{}}
	for _, h := range v.Gate.Holders {
		g.Holders = append(g.Holders, h.Worker)
	}
	if len(g.Holders) > 0 {
		g.Holder = &g.Holders[0]
	}
	for _, q := range v.Gate.Queue {
		g.Queue = append(g.Queue, admin.Queued{Worker: q.Life.Worker, WaitedMS: now.Sub(q.Since).Milliseconds()})
	}
	return g
}

func arenasOf(v drive.View) []admin.ArenaStatus {
	out := make([]admin.ArenaStatus, 0, len(v.View.Arenas))
	for _, a := range v.View.Arenas {
		s := admin.ArenaStatus{Worker: a.Worker, Kind: a.Kind, Bytes: v.ArenaBytes[a.Arena], HandOffs: a.HandOffs}
		for _, x := range a.Slots {
			slot := admin.SlotStatus{State: x.State, Version: x.Version, Row: x.Row}
			if x.Holder != (runner.Life{}) {
				slot.Holder = &x.Holder.Worker
			}
			s.Slots = append(s.Slots, slot)
		}
		out = append(out, s)
	}
	return out
}

func imagesOf(v drive.View) []admin.ImageStatus {
	out := make([]admin.ImageStatus, 0, len(v.View.Images))
	for _, i := range v.View.Images {
		out = append(out, admin.ImageStatus{Step: i.Step, Bytes: v.ImageBytes[i.Image], Valid: i.Valid})
	}
	return out
}

// shownSources bounds the sources in a status, which is written every second.
const shownSources = 100

// lossesOf gives the first sources their recent losses.
func lossesOf(sources []string, known []core.SourceLoss) []admin.SourceLoss {
	out := make([]admin.SourceLoss, min(len(sources), shownSources))
	for i := range out {
		out[i].Source = sources[i]
	}
	for _, x := range known {
		if x.Source < len(out) {
			out[x.Source].Loss = &x.Loss
		}
	}
	return out
}

// restoredOf gives the newest restore of this supervisor's life.
func restoredOf(r core.Restored) *admin.RestoreStatus {
	if r.Lineage == 0 {
		return nil
	}
	return &admin.RestoreStatus{Lineage: r.Lineage, Step: r.Step, Undone: r.Undone}
}

// stallOf gives how long commits waited for images.
func stallOf(x core.Stalls) admin.Stall {
	s := admin.Stall{Commits: x.Commits, Seconds: x.Image.Seconds(), LongestS: x.Longest.Seconds()}
	if x.Training > 0 {
		share := x.Image.Seconds() / x.Training.Seconds()
		s.Share = &share
	}
	return s
}

// acceptanceOf gives the newest acceptance length, and the step it is of.
func acceptanceOf(all []runner.EvaluationRecord) (*float64, *runner.Step) {
	return newest(all, "decode", func(e runner.EvaluationRecord) (float64, bool) {
		return float64(e.Tokens) / float64(e.Forwards), e.Forwards > 0
	})
}

func heldoutOf(all []runner.EvaluationRecord) (*float64, *runner.Step) {
	return newest(all, "loss", func(e runner.EvaluationRecord) (float64, bool) {
		return e.Numerator / e.Denominator, e.Denominator > 0
	})
}

func newest(all []runner.EvaluationRecord, what string, f func(runner.EvaluationRecord) (float64, bool)) (*float64, *runner.Step) {
	for _, e := range slices.Backward(all) {
		if e.What == what {
			if x, ok := f(e); ok {
				return &x, &e.Step
			}
		}
	}
	return nil, nil
}

// warming keeps how far a warm-up is. From any goroutine.
func (u *up) warming(l runner.Life, phase string, done, total uint32) {
	u.meter.warms()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.phases[l.Worker] = phase + " " + itoa(int(done)) + "/" + itoa(int(total))
}

// rate is a count's rise per second over the last window.
type rate struct {
	at    []time.Time
	count []uint64
}

// rateWindow is over how long a rate is taken.
const rateWindow = 15 * time.Second

func (r *rate) add(now time.Time, n uint64) {
	if len(r.count) > 0 && n < r.count[len(r.count)-1] { // a restore
		r.at, r.count = nil, nil
	}
	r.at, r.count = append(r.at, now), append(r.count, n)
	for len(r.at) > 2 && now.Sub(r.at[1]) > rateWindow {
		r.at, r.count = r.at[1:], r.count[1:]
	}
}

func (r *rate) perSecond() *float64 {
	n := len(r.at)
	if n < 2 || r.count[n-1] == r.count[0] {
		return nil
	}
	seconds := r.at[n-1].Sub(r.at[0]).Seconds()
	if seconds <= 0 {
		return nil
	}
	v := float64(r.count[n-1]-r.count[0]) / seconds
	return &v
}

// sortWorkers puts targets first, then drafters, by rank.
func sortWorkers(ws []core.Worker) {
	slices.SortFunc(ws, func(a, b core.Worker) int {
		if a.Worker.Role != b.Worker.Role {
			return strings.Compare(string(b.Worker.Role), string(a.Worker.Role))
		}
		return int(a.Worker.Rank) - int(b.Worker.Rank)
	})
}

// peak reads this process's largest resident memory, 0 where it is not known.
func peak() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return peakOf(string(b))
}

func peakOf(status string) (bytes uint64) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			for _, f := range strings.Fields(rest) {
				for _, c := range f {
					if c >= '0' && c <= '9' {
						bytes = bytes*10 + uint64(c-'0')
					}
				}
			}
			return bytes * 1024
		}
	}
	return 0
}
