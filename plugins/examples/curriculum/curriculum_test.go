package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/schedulertest"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// build makes the plugin as its README says.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "curriculum")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func TestContract(t *testing.T) { schedulertest.Run(t, build(t)) }

// TestChangesTheRun packs epochs in the built-in's order and in the running
// plugin's: the first of these goes from short to long, and the next has fuller
// rows, so it has fewer.
func TestChangesTheRun(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	e, err := host.Pin(build(t))
	if err != nil {
		t.Fatal(err)
	}
	e.Config = map[string]any{"row": int64(512)}
	o := host.Defaults()
	o.Directory = dir
	p, err := host.Start(t.Context(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ix := index(1200)
	builtin := func(q scheduler.ArrangeRequest) ([]runner.Sample, error) { return scheduler.First(q), nil }
	plugged := func(q scheduler.ArrangeRequest) ([]runner.Sample, error) { return p.Arrange(t.Context(), q) }
	plain, first, later := epoch(t, ix, 1, builtin), epoch(t, ix, 1, plugged), epoch(t, ix, 2, plugged)
	if !slices.IsSorted(first.tokens) || slices.IsSorted(plain.tokens) {
		t.Error("want the plugin's first epoch from short to long, and the built-in's not so")
	}
	t.Logf("rows, padding: built-in %d, %.1f %%; curriculum %d, %.1f %%; filled %d, %.1f %%", plain.rows, 100*plain.padding, first.rows, 100*first.padding, later.rows, 100*later.padding)
	if later.padding > 0.7*plain.padding || later.rows >= plain.rows {
		t.Errorf("want three tenths less padding, got %.3f against %.3f", later.padding, plain.padding)
	}
}

// index has samples of two kinds: short ones, and long ones of which few fit a
// row with anything else.
func index(n int) *rows.Index {
	ix := &rows.Index{Sources: []string{"chat"}}
	for i := range n {
		tokens := uint32(24 + (i*i*31)%470)
		ix.Samples = append(ix.Samples, rows.SampleInfo{Tokens: tokens, Supervised: tokens / 2, Anchors: tokens / 4})
	}
	return ix
}

// packed is how an epoch came out.
type packed struct {
	tokens  []uint32 // of samples, as they were ordered
	rows    int
	padding float64 // share of the rows' places
}

// epoch orders a whole epoch a horizon at a time, and packs it as a run does.
func epoch(t *testing.T, ix *rows.Index, number uint32, arrange func(scheduler.ArrangeRequest) ([]runner.Sample, error)) (out packed) {
	t.Helper()
	p, err := rows.NewPlanner(ix, rows.Config{Buckets: []uint32{128, 256, 512}, Anchors: 64, RowsPerStep: 4, Drafters: 2, Draws: 1, Schedule: rows.Schedule{Peak: 1, Total: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	left := rows.Order(5, 1, p.Plannable(), 1)
	total, places, used := len(left), 0, 0
	for len(left) > 0 {
		q := scheduler.ArrangeRequest{Epoch: number, Count: min(100, len(left)), Left: len(left), Total: total, Sources: []scheduler.Source{{Name: "chat"}}}
		for _, s := range left {
			q.Pool = append(q.Pool, scheduler.Candidate{Sample: s, Tokens: ix.Samples[s].Tokens})
		}
		got, err := arrange(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			out.tokens = append(out.tokens, ix.Samples[s].Tokens)
		}
		if err := p.Feed(1, got); err != nil {
			t.Fatal(err)
		}
		left = slices.DeleteFunc(left, func(s runner.Sample) bool { return slices.Contains(got, s) })
		for step, ok := p.Next(); ok; step, ok = p.Next() {
			for _, r := range step.Rows {
				out.rows++
				places += int(r.Bucket)
				for _, piece := range r.Pieces {
					used += int(piece.Tokens)
				}
			}
		}
	}
	out.padding = 1 - float64(used)/float64(places)
	return out
}

func TestFilledRows(t *testing.T) {
	c := &curriculum{settings: settings{Epochs: 0, Row: 10}}
	q := scheduler.ArrangeRequest{Epoch: 1, Count: 6, Left: 6, Total: 6}
	for i, tokens := range []uint32{6, 7, 1, 3, 4, 2} {
		q.Pool = append(q.Pool, scheduler.Candidate{Sample: runner.Sample(i), Tokens: tokens})
	}
	got, err := c.Arrange(context.Background(), q)
	if want := []runner.Sample{0, 4, 1, 3, 2, 5}; err != nil || !slices.Equal(got, want) { // 6+4, 7+3, 1+2
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
