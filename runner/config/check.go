package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxName bounds a run's name: it is a directory's and part of a socket's path.
const maxName = 64

var nameRule = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

// checker collects what is wrong with values that are each well formed.
type checker struct {
	*Config
	known    map[string]bool // paths that already have a problem
	problems Problems
}

// add records a problem, unless the value is known to be wrong already.
func (k *checker) add(path, hint, format string, a ...any) {
	if k.known[path] {
		return
	}
	k.problems = append(k.problems, Problem{Place: k.at.of(path), Path: path, Hint: hint, Message: fmt.Sprintf(format, a...)})
}

// ok reports whether none of the paths has a problem, so that a rule over
// several of them means something.
func (k *checker) ok(paths ...string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool { return k.known[p] })
}

// checker makes a checker that knows of problems found before.
func (c *Config) checker(before Problems) *checker {
	k := &checker{Config: c, known: map[string]bool{}}
	for _, p := range before {
		k.known[p.Path] = true
		if i := strings.IndexByte(p.Path, '['); i > 0 {
			k.known[p.Path[:i]] = true
		}
	}
	return k
}

// check applies the rules that need no file but this one.
func (c *Config) check(before Problems) Problems {
	k := c.checker(before)
	k.run()
	k.target()
	k.data()
	k.training()
	k.buckets()
	k.workers()
	k.scheduler()
	k.costs()
	k.rest()
	return k.problems
}

func (k *checker) run() {
	if n := k.Run.Name; len(n) > maxName || !nameRule.MatchString(n) {
		k.add("run.name", "", "want at most %d of a-z, A-Z, 0-9, '.', '-', '_', beginning with a letter or digit, got %q", maxName, clip(n))
	}
	if k.Run.Directory == "" {
		k.add("run.directory", "", "want a directory, got an empty text")
	}
}

func (k *checker) target() {
	if ids := k.Target.LayerIDs; len(ids) > 0 {
		for i, id := range ids {
			if slices.Contains(ids[:i], id) {
				k.add(fmt.Sprintf("target.layer_ids[%d]", i), "", "want each layer once, got %d again", id)
			} else if i > 0 && id < ids[i-1] {
				k.add(fmt.Sprintf("target.layer_ids[%d]", i), "", "want rising layers, got %d after %d", id, ids[i-1])
			}
		}
	}
	if k.Target.Directory != "" {
		return // the rest is known from its files
	}
	e := k.Target.Embedded
	if e.Heads%max(e.KVHeads, 1) != 0 {
		k.add("target.embedded.kv_heads", "", "want a divisor of heads %d, got %d", e.Heads, e.KVHeads)
	}
	if e.HeadDim%2 != 0 {
		k.add("target.embedded.head_dim", "", "want an even size, got %d", e.HeadDim)
	}
	if e.LearningRate == 0 {
		k.add("target.embedded.learning_rate", "", "want more than 0, got 0")
	}
	if e.Corpus.Source == "files" && len(e.Corpus.Files) == 0 {
		k.add("target.embedded.corpus.files", "", "want at least one file for source files, got none")
	}
	if e.Corpus.Source == "python-stdlib" && len(e.Corpus.Files) > 0 {
		k.add("target.embedded.corpus.files", "set source: files", "want no files for source python-stdlib, got %d", len(e.Corpus.Files))
	}
	if k.ok("target.embedded.layers", "target.layer_ids", "drafter.captured_layers") {
		k.layers(e.Layers)
	}
	k.maskNamed(k.EmbeddedModel())
	if k.ok("training.buckets") {
		k.sizes(k.EmbeddedModel())
	}
}

// layers checks the captured layers against a target of that many.
func (k *checker) layers(total int) {
	for i, id := range k.Target.LayerIDs {
		if id >= total-1 {
			k.add(fmt.Sprintf("target.layer_ids[%d]", i), "layers count from 0; the last layer's output is read after the final norm by some engines and before it by others", "want a layer of the target before its last, 0 to %d, got %d", total-2, id)
		}
	}
	if len(k.Target.LayerIDs) > 0 {
		return
	}
	ids := LayerIDs(total, k.Drafter.CapturedLayers)
	for i, id := range ids {
		if id < 0 || id >= total || i > 0 && id <= ids[i-1] {
			k.add("drafter.captured_layers", "capture fewer layers, or name them in target.layer_ids",
				"want at most %d, three fewer than the target's %d layers, got %d: the rule would capture %v", max(total-3, 1), total, k.Drafter.CapturedLayers, ids)
			return
		}
	}
}

func (k *checker) data() {
	r := k.Data.Regenerate
	if k.Target.Directory != "" {
		if len(k.Data.Files) == 0 {
			k.add("data.files", "", "want at least one file to train on with target.directory, got none")
		}
		if len(k.Data.HeldoutFiles) == 0 && r.Samples == 0 {
			k.add("data.heldout_files", "", "want at least one file that is not trained on, got none")
		}
	} else if len(k.Data.Files) == 0 && r.Samples == 0 {
		k.add("data.regenerate.samples", "", "want samples to make from the corpus, or data.files, got neither")
	}
	for i, f := range k.Data.HeldoutFiles {
		if slices.Contains(k.Data.Files, f) {
			k.add(fmt.Sprintf("data.heldout_files[%d]", i), "", "want files that are not trained on, got %s, which data.files has", clip(f))
		}
	}
	if k.Data.MaxTokens == 1 {
		k.add("data.max_tokens", "", "want at least 2, or 0 for the largest bucket, got 1")
	}
}

func (k *checker) rest() {
	if k.ok("arenas.kind", "workers.device") && k.Arenas.Kind == "cuda_vmm" && k.Workers.Device == "cpu" {
		k.add("arenas.kind", "leave it at auto, or set workers.device: cuda", "want auto or memfd with workers.device cpu, got cuda_vmm")
	}
	if f := k.Failure; f.BackoffMin > f.BackoffMax {
		k.add("failure.backoff_max", "", "want at least backoff_min %s, got %s", f.BackoffMin, f.BackoffMax)
	}
	if k.Data.Regenerate.Samples > 0 && k.Evaluate.HeldoutSamples > k.Data.Regenerate.HeldoutSamples {
		k.add("evaluate.heldout_samples", "", "want at most data.regenerate.heldout_samples %d, got %d", k.Data.Regenerate.HeldoutSamples, k.Evaluate.HeldoutSamples)
	}
	if d := k.Drafter; d.Heads > 0 && d.KVHeads > 0 && d.Heads%d.KVHeads != 0 {
		k.add("drafter.kv_heads", "", "want a divisor of heads %d, got %d", d.Heads, d.KVHeads)
	}
	if k.Drafter.HeadDim%2 != 0 {
		k.add("drafter.head_dim", "", "want an even size, got %d", k.Drafter.HeadDim)
	}
}
