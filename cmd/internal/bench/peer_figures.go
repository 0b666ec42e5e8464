package bench

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Part is what one side's figures include, beside the other's.
type Part struct {
	Name   string `json:"name"`
	Ours   string `json:"ours"`
	Theirs string `json:"theirs"`
}

// both is one figure of both sides, of every round; per row where it is of a step.
type both struct {
	name, unit   string
	ours, theirs []float64
}

// peer adds the figures of all rounds: the middle of each side's, theirs with
// its ratio to ours.
func (r *Report) peer(rounds []beside, shape Shape, peer Peer, cuda bool) error {
	name := trainers[peer.Trainer]
	for _, x := range rounds {
		if x.ours.StepMS <= 0 || x.ours.AloneMS <= 0 || x.theirs.StepMS <= 0 || x.theirs.AloneMS <= 0 {
			return runner.Errorf(runner.Internal, "read results: want times above 0, got %g and %g ms of ours, %g and %g of %s",
				x.ours.StepMS, x.ours.AloneMS, x.theirs.StepMS, x.theirs.AloneMS, name)
		}
	}
	first, batch := rounds[0], float64(peer.Batch)
	if first.ours.Parameters != first.theirs.Parameters {
		return runner.Errorf(runner.Invalid, "compare drafters: want as many trained parameters of %s as of ours, %d, got %d", name, first.ours.Parameters, first.theirs.Parameters).
			WithHint("this commit of it builds another drafter from the same sizes")
	}
	r.shaped(shape, first.ours.about)
	r.Versions["torch of "+name], r.Versions["python of "+name] = first.theirs.Torch, first.theirs.Python
	r.Versions["transformers of "+name] = first.theirs.Transformers
	r.Facts["trainer"], r.Facts["rounds"] = peer.String(), fmt.Sprintf("%d of each side, in alternation", len(rounds))
	r.Facts["ratio"] = "theirs to ours, of this run"
	tokens := float64(shape.Tokens) * 1e3
	for _, f := range []both{
		collect(rounds, "a row, in steps that follow one another", "ms", func(x beside) (float64, float64) { return x.ours.StepMS, x.theirs.StepMS / batch }),
		collect(rounds, "context tokens a second ("+shape.stated()+")", "tokens/s", func(x beside) (float64, float64) { return tokens / x.ours.StepMS, tokens / (x.theirs.StepMS / batch) }),
		collect(rounds, "a row, in a step by itself", "ms", func(x beside) (float64, float64) { return x.ours.AloneMS, x.theirs.AloneMS / batch }),
		collect(rounds, "peak memory", "GiB", func(x beside) (float64, float64) { return gib(x.ours.PeakBytes), gib(x.theirs.PeakBytes) }),
	} {
		r.sides(name, f)
	}
	r.firstSteps(rounds, name)
	r.slowPaths(rounds, name)
	r.add("matrix rate", first.ours.MatmulTFLOPS, "TFLOP/s", 0, nil)
	r.Parts = parts(first, shape, cuda)
	return nil
}

// collect reads a figure from every round.
func collect(rounds []beside, name, unit string, of func(beside) (ours, theirs float64)) both {
	f := both{name: name, unit: unit}
	for _, x := range rounds {
		ours, theirs := of(x)
		f.ours, f.theirs = append(f.ours, ours), append(f.theirs, theirs)
	}
	return f
}

// sides adds a figure of both, and how far apart a side's rounds are.
func (r *Report) sides(name string, f both) {
	ours, theirs := middle(f.ours), middle(f.theirs)
	r.add("ours: "+f.name, ours, f.unit, 0, nil)
	r.add(name+": "+f.name, theirs, f.unit, theirs/max(ours, 1e-9), nil)
	if f.unit == "ms" && len(f.ours) > 1 {
		r.add("ours: "+f.name+", slowest round to quickest", slices.Max(f.ours)/slices.Min(f.ours), "", 0, nil)
		r.add(name+": "+f.name+", slowest round to quickest", slices.Max(f.theirs)/slices.Min(f.theirs), "", 0, nil)
	}
}

// slowPaths adds how often the trainer compiled while it was timed and how often
// its attention ran dense, the most of any round: where it did, its time is not
// that of a step that has settled. A torch that does not tell is a fact.
func (r *Report) slowPaths(rounds []beside, name string) {
	for _, x := range []struct {
		what string
		of   func(beside) int
	}{
		{"compiles in timed steps", func(x beside) int { return x.theirs.Compiles }},
		{"dense calls of flex attention", func(x beside) int { return x.theirs.DenseCalls }},
	} {
		if n := most(rounds, x.of); n < 0 {
			r.Facts[x.what+" of "+name] = "not told by its torch"
		} else {
			r.add(name+": "+x.what, float64(n), "", 0, nil)
		}
	}
}

// firstSteps adds the seconds of a first step in the first process, whose cache
// is empty, and in the last, which finds one.
func (r *Report) firstSteps(rounds []beside, name string) {
	for i, x := range []beside{rounds[0], rounds[len(rounds)-1]} {
		if i > 0 && len(rounds) == 1 {
			break
		}
		cache := [...]string{"empty cache", "cache of the first process"}[i]
		r.add("ours: first step, "+cache, x.ours.Seconds["first_pass"], "s", 0, nil)
		r.add(name+": first step, "+cache, x.theirs.FirstS, "s", x.theirs.FirstS/max(x.ours.Seconds["first_pass"], 1e-9), nil)
		checked := x.ours.Seconds["oracle"] + x.ours.Seconds["record"] + x.ours.Seconds["second_pass"]
		r.add("ours: oracle, recording and second pass after it, "+cache, checked, "s", 0, nil)
		r.add("ours: build before it, "+cache, x.ours.Seconds["build"], "s", 0, nil)
		r.add(name+": import and build before it, "+cache, x.theirs.BuildS, "s", 0, nil)
	}
}

// parts says what is in the figures of both.
func parts(x beside, shape Shape, cuda bool) []Part {
	compiled := "nothing"
	if cuda {
		compiled = "the drafter, attention and the loss, at warm-up"
	}
	ours := map[string]string{
		"anchors and mask": "drawn and built beside the step before (in a step by itself: before it), for " + x.ours.Attention,
		"noise embedding":  fmt.Sprintf("%d tokens a row, in the step", shape.Anchors*shape.Block),
		"head":             fmt.Sprintf("%d slots a row: an anchor's own is left out", shape.Anchors*(shape.Block-1)),
		"clipping":         "to 1",
		"optimiser":        "on float32 masters",
		"wrapper":          "none",
		"compiled":         compiled,
		"left out":         "votes and commits of a run, figures for people, checkpoints, data loading",
	}
	all := maps.Clone(ours)
	maps.Copy(all, x.theirs.Parts)
	var out []Part
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, Part{Name: name, Ours: ours[name], Theirs: x.theirs.Parts[name]})
	}
	return out
}

// middle is the median; of two, their mean.
func middle(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// most is the largest of all rounds.
func most(rounds []beside, of func(beside) int) int {
	largest := of(rounds[0])
	for _, x := range rounds {
		largest = max(largest, of(x))
	}
	return largest
}

func gib(bytes uint64) float64 { return float64(bytes) / (1 << 30) }
