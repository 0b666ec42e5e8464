package drive_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
	"github.com/dflash-runner/dflash-runner/runner/drive"
	"github.com/dflash-runner/dflash-runner/runner/journal"
)

// pluginMoods are what a plugin's answers are drawn from; most are good.
var pluginMoods = []string{"good", "good", "good", "good", "good", "late", "silent", "wrong", "error", "dies"}

// plugin decides at random, and answers late, wrong or not at all; it dies and
// comes back. What it does, the seed and the number of the question decide.
type plugin struct {
	moody
	mu   sync.Mutex // guards below
	back time.Time  // dead until then
	done map[string]int
}

var _ drive.PoolScheduler = (*plugin)(nil)

// Name gives the plugin's.
func (*plugin) Name() string { return "plugin" }

// question numbers a question, and draws how it is answered. An error is the
// answer.
func (p *plugin) question(ctx context.Context, what string, moods []string) (*rand.Rand, string, error) {
	p.mu.Lock()
	p.done[what]++
	r := p.t.random("plugin ", what, p.done[what])
	mood := moods[r.IntN(len(moods))]
	if now := time.Now(); now.Before(p.back) {
		mood = "absent"
	} else if mood == "dies" {
		p.back = now.Add(upTo(r, 80*time.Millisecond))
	}
	p.mu.Unlock()
	if struck := p.mood(); struck != "" {
		mood = struck
	}
	p.t.w.did("plugin, " + what + ": " + mood)
	time.Sleep(upTo(r, 3*time.Millisecond)) // of the bubble's time, as below
	switch mood {
	case "absent":
		return r, mood, fmt.Errorf("it rests: %w", drive.ErrDeclined)
	case "late":
		time.Sleep(300 * time.Millisecond)
	case "silent":
		<-ctx.Done()
		return r, mood, ctx.Err()
	case "error", "dies":
		return r, mood, errors.New("connection refused")
	}
	return r, mood, nil
}

// ArrangeOf gives any of the pool, in any order.
func (p *plugin) ArrangeOf(ctx context.Context, q core.Arrange, pool []runner.Sample) ([]runner.Sample, error) {
	r, mood, err := p.question(ctx, "arrange", pluginMoods)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(pool)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	out = out[:min(q.Count, len(out))]
	if mood == "wrong" {
		switch r.IntN(4) {
		case 0:
			out = out[1:]
		case 1:
			out[0] = out[len(out)-1] // twice, unless it is the only one
		case 2:
			out[r.IntN(len(out))] = 4_000_000
		case 3:
			out[0] = p.Samples[r.IntN(len(p.Samples))] // given before, mostly
		}
	}
	return out, nil
}

// Assign takes any free target.
func (p *plugin) Assign(ctx context.Context, _ runner.RowPlan, free []runner.Worker) (runner.Worker, error) {
	r, mood, err := p.question(ctx, "assign", pluginMoods)
	if err != nil {
		return runner.Worker{}, err
	}
	if mood == "wrong" {
		return []runner.Worker{{Role: runner.Target, Rank: 9}, {Role: runner.Drafter}, {}}[r.IntN(3)], nil
	}
	return free[r.IntN(len(free))], nil
}

// follower arranges as a journal did.
type follower struct {
	drive.Fixed
	all *[]runner.ArrangeRecord // not given yet
}

// Arrange gives the next record's samples.
func (f follower) Arrange(_ context.Context, epoch uint32, _, _ int) ([]runner.Sample, error) {
	if len(*f.all) == 0 || (*f.all)[0].Epoch != epoch {
		return nil, fmt.Errorf("the journal has no more of epoch %d", epoch)
	}
	next := (*f.all)[0].Samples
	*f.all = (*f.all)[1:]
	return next, nil
}

// did counts what a plugin did, in a history that is struck.
func (w *world) did(what string) {
	if w.struck == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.struck.did[what]++
}

// arranged reads in which order samples came.
func (w *world) arranged() (all []runner.ArrangeRecord) {
	w.t.Helper()
	if _, err := journal.Scan(filepath.Join(w.dir, "journal"), func(e journal.Entry) error {
		if a, ok := e.Record.(runner.ArrangeRecord); ok {
			all = append(all, a)
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	return all
}

// undone gives what plugins did not do that the table of a whole test must hold.
func (a *table) undone() (never []string) {
	want := slices.Clone(became)
	for what, moods := range map[string][]string{"arrange": pluginMoods, "assign": pluginMoods, "on_failure": verdictMoods} {
		for _, mood := range append(slices.Clone(moods), "absent") {
			want = append(want, "plugin, "+what+": "+mood)
		}
	}
	for _, what := range want {
		if a.did[what] == 0 {
			never = append(never, what)
		}
	}
	return never
}

// plugins are the table's lines about plugins.
func (a *table) plugins() string {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(a.did)) {
		fmt.Fprintf(&b, "\n%-44s%9d", what, a.did[what])
	}
	return b.String()
}
