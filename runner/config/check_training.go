package config

import (
	"fmt"
	"regexp"
)

// maxBuckets bounds the compiled shapes: each costs two graphs and a warm-up.
const maxBuckets = 3

func (k *checker) training() {
	t := k.Training
	switch {
	case t.Steps == 0 && t.Epochs == 0:
		k.add("training.steps", "or set training.epochs", "want at least 1 step, got 0")
	case t.Steps > 0 && t.Epochs > 0:
		k.add("training.epochs", "remove one of the two", "want steps or epochs, got both: %d steps and %d epochs", t.Steps, t.Epochs)
	}
	if t.LearningRate == 0 {
		k.add("training.learning_rate", "", "want more than 0, got 0")
	}
	if len(t.Betas) != 2 {
		k.add("training.betas", "", "want two numbers, got %d", len(t.Betas))
	}
	if n := int(k.Workers.Drafters); n > 0 && k.ok("training.rows_per_step", "workers.drafters") && t.RowsPerStep%n != 0 {
		k.add("training.rows_per_step", fmt.Sprintf("%d or %d would do", max(t.RowsPerStep-t.RowsPerStep%n, n), t.RowsPerStep-t.RowsPerStep%n+n),
			"want a multiple of the %d drafters, got %d", n, t.RowsPerStep)
	}
}

// buckets checks everything that must fit into a row.
func (k *checker) buckets() {
	b := k.Training.Buckets
	if !k.ok("training.buckets") {
		return
	}
	if len(b) == 0 || len(b) > maxBuckets {
		k.add("training.buckets", "", "want 1 to %d lengths, got %d", maxBuckets, len(b))
		return
	}
	for i := 1; i < len(b); i++ {
		if b[i] <= b[i-1] {
			k.add(fmt.Sprintf("training.buckets[%d]", i), "", "want rising lengths, got %d after %d", b[i], b[i-1])
			return
		}
	}
	least, most := b[0], b[len(b)-1]
	if a := k.Training.Anchors; a > least-1 {
		k.add("training.anchors", "every anchor needs a token after it", "want at most %d, what a row of the smallest bucket %d holds, got %d", least-1, least, a)
	}
	if n := k.Drafter.BlockSize; n > least {
		k.add("drafter.block_size", "", "want at most the smallest bucket %d, got %d", least, n)
	}
	if n := k.Data.MaxTokens; n > most {
		k.add("data.max_tokens", "a sample is never cut to fit a row", "want at most the largest bucket %d, got %d", most, n)
	}
	if r := k.Data.Regenerate; r.Samples > 0 && r.PromptTokens+r.NewTokens > most {
		k.add("data.regenerate.new_tokens", "", "want prompt_tokens + new_tokens of at most the largest bucket %d, got %d", most, r.PromptTokens+r.NewTokens)
	}
}

// minFlexHeadDim is the least that the matrix products of the kernels take.
const minFlexHeadDim = 16

// flex checks what compiled attention asks for.
func (k *checker) flex() {
	f, where := k.Drafter.Flex, "drafter.flex."
	for _, size := range []struct {
		key   string
		value int
	}{
		{"block_m", f.BlockM}, {"block_n", f.BlockN}, {"warps", f.Warps},
		{"backward_block_m1", f.BackwardBlockM1}, {"backward_block_n1", f.BackwardBlockN1},
		{"backward_block_m2", f.BackwardBlockM2}, {"backward_block_n2", f.BackwardBlockN2},
		{"backward_warps", f.BackwardWarps},
	} {
		if size.value&(size.value-1) != 0 && k.ok(where+size.key) {
			k.add(where+size.key, "0 leaves it to torch", "want a power of two, got %d", size.value)
		}
	}
	if k.Workers.Device == "cpu" {
		return
	}
	if got := k.Target.DType; k.Target.Attention == "flex" && got != "bfloat16" && k.ok("target.dtype") {
		k.add("target.dtype", "float32 has no tensor cores to multiply it", "want bfloat16 with target.attention flex, got %s", got)
	}
	if k.Drafter.Attention != "flex" {
		return
	}
	if got := k.Training.ComputeDType; got != "bfloat16" && k.ok("training.compute_dtype") {
		k.add("training.compute_dtype", "float32 queries make the backward an order of magnitude slower", "want bfloat16 with drafter.attention flex, got %s", got)
	}
	if got := k.Drafter.HeadDim; got != 0 && got < minFlexHeadDim && k.ok("drafter.head_dim") {
		k.add("drafter.head_dim", "", "want at least %d with drafter.attention flex, got %d", minFlexHeadDim, got)
	}
}

// deviceRule is how a GPU is named: nvidia-smi's index, or the whole UUID.
var deviceRule = regexp.MustCompile(`^([0-9]{1,4}|GPU-[0-9a-zA-Z-]+)$`)

func (k *checker) workers() {
	w := k.Workers
	if k.Scheduler.Use == Fixed && (w.Targets == Auto || w.Drafters == Auto) {
		k.add("scheduler.use", "name both counts, or leave scheduler.use at balanced", "want balanced or a plugin where workers.targets or workers.drafters is auto, got fixed")
	}
	k.flex()
	if w.Device == "cpu" {
		if k.Drafter.Attention == "flex" {
			k.add("drafter.attention", "flex_attention has no backward on a CPU", "want sdpa on device cpu, got flex")
		}
		if k.Target.Attention == "flex" {
			k.add("target.attention", "only a GPU's kernels are compiled", "want sdpa on device cpu, got flex")
		}
		if k.Target.Replay == "true" {
			k.add("target.replay", "only a GPU records", "want false on device cpu, got true")
		}
		if w.Deterministic == "true" {
			k.add("workers.deterministic", "a CPU gives the same bits anyway", "want false on device cpu, got true")
		}
		if len(w.Devices) > 0 {
			k.add("workers.devices", "set device: cuda, or remove the list", "want no list on device cpu, got %d", len(w.Devices))
		}
		return
	}
	seen := map[string]bool{}
	for i, d := range w.Devices {
		switch {
		case !deviceRule.MatchString(d):
			k.add(fmt.Sprintf("workers.devices[%d]", i), "`dflash-runner doctor` lists the GPUs", "want a GPU's index or UUID, such as 0 or GPU-5e0..., got %q", clip(d))
		case seen[d]:
			k.add(fmt.Sprintf("workers.devices[%d]", i), "with colocate a target and a drafter share one GPU by themselves", "want each GPU once, got %s again", clip(d))
		}
		seen[d] = true
	}
	n := len(w.Devices)
	if n == 0 || !k.ok("workers.targets", "workers.drafters", "workers.devices") {
		return // how many GPUs there are is known at placement
	}
	t, d := max(1, int(w.Targets)), max(1, int(w.Drafters)) // auto: one at least
	if w.Colocate == "false" && t+d > n {
		k.add("workers.colocate", "name more GPUs, or set colocate: auto",
			"want a GPU for each of %d workers with colocate: false, got %d: two workers would share one", t+d, n)
		return
	}
	if most := max(t, d); most > n {
		k.add("workers.devices", "only a target and a drafter may share a GPU", "want at least %d GPUs for %d targets and %d drafters, got %d", most, t, d, n)
	}
}
