package bench

import (
	"context"
	"fmt"
	"os"

	"github.com/dflash-runner/dflash-runner/runner"
)

// askedRank is a question to drafters.py.
type askedRank struct {
	asked
	RowsPerStep int    `json:"rows_per_step"`
	World       int    `json:"world"`
	Rank        int    `json:"rank"`
	Groups      string `json:"groups"` // directory that ranks meet in; empty: it is alone
}

// rankAnswer is what drafters.py answers.
type rankAnswer struct {
	about
	Steps     int     `json:"steps"`
	Seconds   float64 `json:"seconds"` // of the steps
	KeptS     float64 `json:"kept_s"`  // of them, by sums
	SumBytes  uint64  `json:"sum_bytes"`
	PeakBytes uint64  `json:"peak_bytes"`
	Digest    string  `json:"digest"` // of the parameters at the end
	Replayed  bool    `json:"replayed"`
	Attention string  `json:"attention"`
	Cache     string  `json:"cache"`
	Precision string  `json:"precision"`
	WarmUpS   float64 `json:"warm_up_s"`
}

// Drafters are the most that DraftersBench measures at once.
const Drafters = 2

// DraftersBench measures a drafter alone, and then two at once that sum their
// gradients, each with a device of its own where these are GPUs, fed from rows
// that were made beforehand: perStep rows each in a step, rows in all.
func DraftersBench(ctx context.Context, p *Python, d Devices, shape Shape, rows, perStep int) (*Report, error) {
	r := start("drafters")
	r.on(d)
	question := askedRank{asked: asked{Shape: shape, Device: d.told(), Threads: d.threads(), Rows: rows}, RowsPerStep: perStep}
	alone, err := p.ranks(ctx, d, question, 1)
	if err != nil {
		return nil, err
	}
	both, err := p.ranks(ctx, d, question, Drafters)
	if err != nil {
		return nil, err
	}
	shape.Rows = rows
	if err := r.drafters(alone[0], both, shape, perStep, d.OnGPU()); err != nil {
		return nil, err
	}
	return r.done(), nil
}

// ranks runs a group of drafters, a process each, to their answers. Where one
// fails the others, which would wait for it for ever, are ended.
func (p *Python) ranks(ctx context.Context, d Devices, question askedRank, world int) ([]rankAnswer, error) {
	question.World = world
	if world > 1 {
		groups, err := os.MkdirTemp(p.dir, "groups-")
		if err != nil {
			return nil, runner.Errorf(runner.Unavailable, "make directory of groups: %w", err)
		}
		question.Groups = groups
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type ended struct {
		rank int
		err  error
	}
	answers, all := make([]rankAnswer, world), make(chan ended, world)
	for rank := range world {
		asked := question
		asked.Rank = rank
		go func() { // ends with its process, which ctx ends; waited for below
			all <- ended{rank, p.measure(ctx, &answers[rank], p.on(d.place(rank), asked.Threads, compiling()...), "drafters.py", asked)}
		}()
	}
	var first error
	for range world {
		if x := <-all; x.err != nil && first == nil {
			first = runner.Errorf(runner.KindOf(x.err), "drafter %d of %d: %w", x.rank, world, x.err).WithHint("%s", runner.HintOf(x.err))
			cancel()
		}
	}
	return answers, first
}

// drafters adds what one came to and what two did. A group is as quick as its
// slower rank.
func (r *Report) drafters(alone rankAnswer, both []rankAnswer, shape Shape, perStep int, cuda bool) error {
	longest, peak := 0.0, uint64(0)
	for _, x := range append([]rankAnswer{alone}, both...) {
		if x.Seconds <= 0 || x.Steps < 1 || x.Steps != alone.Steps {
			return runner.Errorf(runner.Internal, "read result of drafters.py: want %d steps in more than 0s, got %d in %gs", max(1, alone.Steps), x.Steps, x.Seconds)
		}
		peak = max(peak, x.PeakBytes)
	}
	for _, x := range both {
		if x.Digest != both[0].Digest {
			return runner.Errorf(runner.Internal, "read result of drafters.py: want equal parameters after the same sums, got %.12s and %.12s", both[0].Digest, x.Digest)
		}
		longest = max(longest, x.Seconds)
	}
	r.shaped(shape, alone.about)
	steps := float64(alone.Steps)
	rows := steps * float64(perStep)
	one, two := rows/alone.Seconds, rows*float64(len(both))/longest
	r.add("rows a second, one drafter alone", one, "rows/s", 0, nil)
	r.add(fmt.Sprintf("rows a second, %d drafters", len(both)), two, "rows/s", two/one, goalOn(cuda, ratioAtLeast(1.9)))
	r.add(fmt.Sprintf("context tokens a second, %d drafters (%s)", len(both), shape.stated()), two*float64(shape.Tokens), "tokens/s", two/one, nil)
	r.add(fmt.Sprintf("step of %d rows, alone", perStep), 1e3*alone.Seconds/steps, "ms", 0, nil)
	r.add(fmt.Sprintf("step of %d rows each, %d drafters", perStep, len(both)), 1e3*longest/steps, "ms", longest/alone.Seconds, nil)
	for rank, x := range both {
		r.add(fmt.Sprintf("drafter %d kept by the sum, a step", rank), 1e3*x.KeptS/steps, "ms", x.KeptS/x.Seconds, nil)
	}
	r.add("summed a step", float64(alone.SumBytes)/(1<<30), "GiB", 0, nil)
	r.add("peak memory", float64(peak)/(1<<30), "GiB", 0, nil)
	r.add("warm-up, alone (cache "+alone.Cache+")", alone.WarmUpS, "s", 0, nil)
	r.Facts["attention"], r.Facts["precision"] = alone.Attention, alone.Precision
	r.Facts["sum"] = map[bool]string{true: "NCCL, beside the last row's backward", false: "gloo, after it"}[cuda]
	r.Facts["replayed"] = map[bool]string{true: "all rows of a step but the last, alone all", false: "none"}[both[0].Replayed]
	r.Facts["ratio of a wait"] = "to the time of its drafter"
	return nil
}
