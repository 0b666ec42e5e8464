package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/configs"
	"github.com/dflash-runner/dflash-runner/runner"
)

// TestShipped loads what ships in the binary.
func TestShipped(t *testing.T) {
	c := Default()
	if c.Run.Name != "cpu-tiny" || c.Workers.Drafters != 2 || c.Training.StopAfter.Time != 0 {
		t.Errorf("default: got %+v", c)
	}
	if _, err := parseAll("cpu-test.yaml", configs.CPUTest(), nil); err != nil {
		t.Error(err)
	}
}

// TestDefaultIsTheReference: cpu-tiny.yaml has every key, each with a comment.
func TestDefaultIsTheReference(t *testing.T) {
	c := Default()
	walk(reflect.TypeFor[Config](), reflect.ValueOf(*c), "", func(path, _ string, _ reflect.Value) {
		if _, ok := c.at[path]; !ok {
			t.Errorf("cpu-tiny.yaml: no %s", path)
		}
	})
	for i, line := range strings.Split(string(configs.CPUTiny()), "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed != "" && !strings.HasSuffix(trimmed, ":") && !strings.Contains(line, "#") {
			t.Errorf("cpu-tiny.yaml:%d: no comment: %s", i+1, line)
		}
	}
}

// TestResolvedRoundTrip: what `config show` prints is the same configuration.
func TestResolvedRoundTrip(t *testing.T) {
	for name, text := range map[string][]byte{"cpu-tiny.yaml": configs.CPUTiny(), "cpu-test.yaml": configs.CPUTest()} {
		first, err := parseAll(name, text, []string{"data.heldout_files=['a: b', \"q\\\"uote\", '# c', '- d', 'true', '12']", "run.name=x-1"})
		if err != nil {
			t.Fatal(err)
		}
		sameAfterRoundTrip(t, first)
	}
}

func sameAfterRoundTrip(t *testing.T, first *Config) {
	t.Helper()
	resolved, err := first.YAML()
	if err != nil {
		t.Fatal(err)
	}
	second, err := parseAll("resolved.yaml", resolved, nil)
	if err != nil {
		t.Fatalf("resolved configuration is refused: %v\n%s", err, resolved)
	}
	again, err := second.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(resolved, again) {
		t.Errorf("resolved twice:\n%s\n---\n%s", resolved, again)
	}
	a, b := *first, *second
	a.at, b.at = nil, nil
	if !reflect.DeepEqual(normal(a), normal(b)) {
		t.Errorf("want %+v, got %+v", a, b)
	}
}

// normal makes empty and missing lists the same.
func normal(c Config) Config {
	for _, l := range []*[]string{&c.Target.Embedded.Corpus.Files, &c.Data.Files, &c.Data.HeldoutFiles, &c.Workers.Devices} {
		if len(*l) == 0 {
			*l = nil
		}
	}
	if len(c.Scheduler.Plugins) == 0 {
		c.Scheduler.Plugins = nil
	}
	if len(c.Target.LayerIDs) == 0 {
		c.Target.LayerIDs = nil
	}
	return c
}

// valid is a small file that loads; tests break one line of it.
const valid = "version: 1\ndata: {regenerate: {samples: 64}}\ntraining: {steps: 4, buckets: [160], anchors: 20, rows_per_step: 4}\nworkers: {drafters: 2}\ndrafter: {layers: 2, captured_layers: 3}\n"

func TestProblems(t *testing.T) {
	cases := []struct {
		name, text string
		set        []string
		want       []string // each a problem, in order, without the "f.yaml:" in front
	}{
		{"empty file", "", nil, []string{" want a configuration, got an empty file"}},
		{"only comments", "# nothing\n\n", nil, []string{" want a configuration, got an empty file"}},
		{"tab", "version: 1\nrun:\n\tname: x\n", nil, []string{"3:1: want spaces for indentation, got a tab"}},
		{"not UTF-8", "version: 1\nrun: {name: \"\xff\"}\n", nil, []string{"2:1: want UTF-8"}},
		{"syntax", "version: 1\nrun: {name: x\n", nil, []string{"want YAML"}},
		{"list at the top", "- version: 1\n", nil, []string{"1:1: want a section with keys, got a list"}},
		{"two documents", "version: 1\n---\nversion: 1\n", nil, []string{"3:1: want one document, got 2"}},
		{"duplicate key", "version: 1\nversion: 1\n", nil, []string{"2:1: want YAML: mapping key \"version\" already defined"}},
		{"no version", "run: {name: x}\n", nil, []string{"1:1: version: want version: 1, got none"}},
		{"future version", "version: 2\n", nil, []string{"1:10: version: want at most 1, got 2"}},
		{"unknown key", valid + "run: {nmae: x}\n", nil, []string{"6:7: run.nmae: unknown key (did you mean \"name\"?)"}},
		{"unknown section", valid + "traning: {}\n", nil, []string{"6:1: traning: unknown key (did you mean \"training\"?)"}},
		{"key of another section", valid + "export: {level: info}\n", nil, []string{"6:10: export.level: unknown key (\"level\" belongs under \"log\")"}},
		{"key like no other", valid + "export: {zzzzzz: 1}\n", nil, []string{"unknown key (known keys: directory, dtype)"}},
		{"nothing given", valid + "log:\n  level:\n", nil, []string{"7:3: log.level: want trace, debug, info, warn or error, got nothing"}},
		{"section without keys", valid + "log:\n", nil, []string{"6:1: log: want a section with keys, got nothing"}},
		{"text for a number", valid + "images: {every_steps: often}\n", nil, []string{"6:23: images.every_steps: want a whole number, got the text \"often\""}},
		{"fraction for a count", valid + "images: {every_steps: 2.5}\n", nil, []string{"want a whole number, got 2.5"}},
		{"number for text", valid + "python: {interpreter: 3}\n", nil, []string{"want text, got 3 (quote it: \"3\")"}},
		{"scalar for a list", valid + "target: {layer_ids: 3}\n", nil, []string{"target.layer_ids: want a list, got 3 (write [3])"}},
		{"scalar for a section", valid + "log: info\n", nil, []string{"log: want a section with keys, got the text \"info\""}},
		{"not a number", valid + "warmup: {width: .nan}\n", nil, []string{"warmup.width: want a whole number, got .nan"}},
		{"infinite", valid, []string{"training.gamma=.inf"}, []string{"want a number, got .inf"}},
		{"anchor and alias", valid + "images: {every_steps: &x 3}\n", nil, []string{"want a plain value, got a YAML anchor, alias or tag"}},
		{"negative count", valid + "images: {every_steps: -3}\n", nil, []string{"6:23: images.every_steps: want at least 1, got -3"}},
		{"negative seed", valid + "run: {seed: -1}\n", nil, []string{"run.seed: want a whole number from 0, got -1"}},
		{"number too large", valid + "images: {every_steps: 99999999999999999999}\n", nil, []string{"images.every_steps: want"}},
		{"duration without unit", valid + "warmup: {deadline: 30}\n", nil, []string{"6:20: warmup.deadline: want a duration with its unit such as 30s, 5m or 1h30m, got \"30\""}},
		{"duration misspelt", valid + "warmup: {deadline: 30 sec}\n", nil, []string{"got \"30 sec\""}},
		{"negative duration", valid + "warmup: {deadline: -30s}\n", nil, []string{"want a duration that is not negative, got -30s"}},
		{"duration too short", valid + "warmup: {deadline: 1ms}\n", nil, []string{"warmup.deadline: want at least 1s, got 1ms"}},
		{"size without unit", valid + "target: {embedded: {corpus: {max_bytes: 3}}}\n", nil, []string{"want a whole size with its unit such as 2GiB, 512MiB or 3MB, got \"3\""}},
		{"size overflow", valid + "target: {embedded: {corpus: {max_bytes: 99999999999999TiB}}}\n", nil, []string{"want a size below"}},
		{"block size 1", valid, []string{"drafter.block_size=1"}, []string{"--set drafter.block_size=1: drafter.block_size: want at least 2, got 1 (BlockSize is the anchor and the mask tokens predicted at once, in tokens. Default 16.)"}},
		{"more anchors than the row holds", valid, []string{"training.anchors=160"}, []string{"training.anchors: want at most 159, what a row of the smallest bucket 160 holds, got 160"}},
		{"row longer than the embedded target's positions", valid, []string{"training.buckets=[1025]"}, []string{"training.buckets: want at most the target's 1024 positions, got 1025"}},
		{"zero steps", valid, []string{"training.steps=0"}, []string{"training.steps: want at least 1 step, got 0 (or set training.epochs)"}},
		{"steps and epochs", valid, []string{"training.epochs=2"}, []string{"want steps or epochs, got both"}},
		{"no drafter", valid, []string{"workers.drafters=0"}, []string{"workers.drafters: want at least 1, or auto, got 0"}},
		{"negative steps", valid, []string{"training.steps=-1"}, []string{"training.steps: want at least 0, got -1 (Steps of the optimiser; 0: use epochs. Default 0.)"}},
		{"a list's entry", valid, []string{"training.buckets=[2]"}, []string{"training.buckets[0]: want at least 8, got 2 (Buckets are the lengths"}},
		{"rows not a multiple of drafters", valid, []string{"training.rows_per_step=5"}, []string{"training.rows_per_step: want a multiple of the 2 drafters, got 5 (4 or 6 would do)"}},
		{"buckets not rising", valid, []string{"training.buckets=[160,160]"}, []string{"training.buckets[1]: want rising lengths, got 160 after 160"}},
		{"too many buckets", valid, []string{"training.buckets=[160,170,180,190]"}, []string{"training.buckets: want 1 to 3 lengths, got 4"}},
		{"no bucket", valid, []string{"training.buckets=[]"}, []string{"training.buckets: want 1 to 3 lengths, got 0"}},
		{"unknown attention", valid, []string{"drafter.attention=dense"}, []string{"drafter.attention: want auto, sdpa or flex, got \"dense\""}},
		{"flex on a CPU", valid, []string{"drafter.attention=flex"}, []string{"drafter.attention: want sdpa on device cpu, got flex"}},
		{"flex in float32", valid, []string{"workers.device=cuda", "drafter.attention=flex"}, []string{"training.compute_dtype: want bfloat16 with drafter.attention flex, got float32"}},
		{"flex with small heads", valid, []string{"workers.device=cuda", "drafter.attention=flex", "training.compute_dtype=bfloat16", "drafter.head_dim=8"}, []string{"drafter.head_dim: want at least 16 with drafter.attention flex, got 8"}},
		{"unknown precision", valid, []string{"drafter.precision=fp16"}, []string{"drafter.precision: want compute_dtype or fp8, got \"fp16\""}},
		{"fp8 with odd blocks", valid, []string{"drafter.precision=fp8", "training.anchors=33", "drafter.block_size=5"}, []string{"training.anchors: want a multiple of 16 of anchors x drafter.block_size with drafter.precision fp8, got 165 (leave drafter.precision at compute_dtype)"}},
		{"fp8 with an odd row", valid, []string{"drafter.precision=fp8", "training.buckets=[160,168]"}, []string{"training.buckets[1]: want a multiple of 16 with drafter.precision fp8, got 168"}},
		{"fp8 with an odd MLP", valid, []string{"drafter.precision=fp8", "drafter.intermediate_size=100"}, []string{"drafter.intermediate_size: want a multiple of 16 with drafter.precision fp8, got 100"}},
		{"fp8 with odd heads", valid, []string{"drafter.precision=fp8", "drafter.heads=3", "drafter.kv_heads=1", "drafter.head_dim=10"}, []string{
			"drafter.heads: want a multiple of 16 of heads x head_dim with drafter.precision fp8, got 30", "drafter.kv_heads: want a multiple of 16 of kv_heads x head_dim with drafter.precision fp8, got 10"}},
		{"fp8 of an odd target", valid, []string{"drafter.precision=fp8", "target.embedded.hidden_size=72", "target.embedded.intermediate_size=72"}, []string{
			"drafter.hidden_size: want a multiple of 16 with drafter.precision fp8, got 72", "drafter.intermediate_size: want a multiple of 16 with drafter.precision fp8, got 72"}},
		{"fp8 on a GPU without a compiler", valid, []string{"drafter.precision=fp8", "workers.device=cuda", "drafter.attention=sdpa"}, []string{"drafter.precision: want compute_dtype with drafter.attention sdpa on a GPU, got fp8"}},
		{"kernel block of no size", valid, []string{"drafter.flex.block_m=48"}, []string{"drafter.flex.block_m: want a power of two, got 48 (0 leaves it to torch)"}},
		{"rows by flex on a CPU", valid, []string{"target.attention=flex"}, []string{"target.attention: want sdpa on device cpu, got flex"}},
		{"rows by an unknown attention", valid, []string{"target.attention=dense"}, []string{"target.attention: want auto, sdpa or flex, got \"dense\""}},
		{"rows by flex in float32", valid, []string{"workers.device=cuda", "drafter.attention=sdpa", "target.attention=flex"}, []string{"target.dtype: want bfloat16 with target.attention flex, got float32"}},
		{"rows by flex with small heads", valid, []string{"workers.device=cuda", "drafter.attention=sdpa", "target.dtype=bfloat16", "target.embedded.head_dim=8", "drafter.head_dim=16"}, []string{"target.attention: want sdpa for a target with heads of 8, got flex"}},
		{"rows replayed on a CPU", valid, []string{"target.replay=true"}, []string{"target.replay: want false on device cpu, got true"}},
		{"another kernel backend", valid, []string{"drafter.flex.backend=flash"}, []string{"drafter.flex.backend: want triton, got \"flash\""}},
		{"captured layer out of range", valid, []string{"target.layer_ids=[1,6]"}, []string{"target.layer_ids[1]: want a layer of the target before its last, 0 to 4, got 6"}},
		{"captured layer twice", valid, []string{"target.layer_ids=[1,3,3]"}, []string{"target.layer_ids[2]: want each layer once, got 3 again"}},
		{"captured layers fall", valid, []string{"target.layer_ids=[3,1]"}, []string{"target.layer_ids[1]: want rising layers, got 1 after 3"}},
		{"too many captured layers", valid, []string{"target.embedded.layers=4"}, []string{"drafter.captured_layers: want at most 1, three fewer than the target's 4 layers, got 3: the rule would capture [1 1 1]"}},
		{"two workers on one GPU", valid, []string{"workers.device=cuda", "drafter.attention=sdpa", "workers.devices=[0, 1]", "workers.colocate=false"}, []string{"workers.colocate: want a GPU for each of 3 workers with colocate: false, got 2: two workers would share one"}},
		{"two drafters on one GPU", valid, []string{"workers.device=cuda", "drafter.attention=sdpa", "workers.devices=[GPU-1]"}, []string{"workers.devices: want at least 2 GPUs for 1 targets and 2 drafters, got 1"}},
		{"one GPU twice", valid, []string{"workers.device=cuda", "drafter.attention=sdpa", "workers.devices=[0, 0, 1]"}, []string{"workers.devices[1]: want each GPU once, got 0 again"}},
		{"no GPU's name", valid, []string{"workers.device=cuda", "drafter.attention=sdpa", "workers.devices=[first, cuda:1, MIG-1]"}, []string{"workers.devices[0]: want a GPU's index or UUID, such as 0 or GPU-5e0..., got \"first\"", "got \"cuda:1\"", "got \"MIG-1\""}},
		{"unknown device", valid, []string{"workers.device=tpu"}, []string{"workers.device: want cpu or cuda, got \"tpu\""}},
		{"busy devices", valid, []string{"workers.busy_devices=maybe"}, []string{"workers.busy_devices: want refuse or allow, got \"maybe\""}},
		{"determinism on a CPU", valid, []string{"workers.deterministic=true"}, []string{"workers.deterministic: want false on device cpu, got true (a CPU gives"}},
		{"devices on a CPU", valid, []string{"workers.devices=[0]"}, []string{"workers.devices: want no list on device cpu, got 1"}},
		{"bad name", valid, []string{"run.name=../x"}, []string{"run.name: want at most 64 of a-z"}},
		{"betas", valid, []string{"training.betas=[0.9]"}, []string{"training.betas: want two numbers, got 1"}},
		{"answer longer than a row", valid, []string{"data.regenerate.new_tokens=129"}, []string{"want prompt_tokens + new_tokens of at most the largest bucket 160, got 161"}},
		{"nothing to train on", valid, []string{"data.regenerate.samples=0"}, []string{"data.regenerate.samples: want samples to make from the corpus, or data.files, got neither"}},
		{"held-out file trained on", valid, []string{"data.files=[a.txt]", "data.heldout_files=[a.txt]"}, []string{"data.heldout_files[0]: want files that are not trained on"}},
		{"arenas", valid, []string{"arenas.kind=cuda_vmm"}, []string{"arenas.kind: want auto or memfd with workers.device cpu, got cuda_vmm"}},
		{"backoff", valid, []string{"failure.backoff_min=2m"}, []string{"failure.backoff_max: want at least backoff_min 2m, got 30s"}},
		{"set without value", valid, []string{"training.steps"}, []string{"--set training.steps: want path=value"}},
		{"set of an unknown path", valid, []string{"training.step=3"}, []string{"--set training.step=3: training.step: unknown key (did you mean \"steps\"?)"}},
		{"set below a value", valid, []string{"training.steps.x=3"}, []string{"unknown key: training.steps holds a value, not keys"}},
		{"set of nothing", valid, []string{"training.steps="}, []string{"training.steps: want a value, got nothing"}},
		{"all at once", "version: 1\nrun: {nmae: x, seed: a}\ntraining: {steps: -1}\nwarmup: {deadline: soon}\n", nil, []string{
			"2:7: run.nmae", "2:22: run.seed", "3:19: training.steps: want at least 0", "4:20: warmup.deadline",
			"drafter.captured_layers: want at most 3", "data.regenerate.samples", "training.buckets: want at most the target's 1024 positions, got 3072"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseAll("f.yaml", []byte(c.text), c.set)
			checkProblems(t, err, c.want)
		})
	}
}

// checkProblems wants each problem to hold its text, and no further problem.
func checkProblems(t *testing.T, err error, want []string) {
	t.Helper()
	var got Problems
	if !errors.As(err, &got) || runner.KindOf(err) != runner.Invalid {
		t.Fatalf("want problems of kind invalid, got %v", err)
	}
	lines := strings.Split(err.Error(), "\n")
	for _, w := range want {
		i := 0
		for i < len(lines) && !strings.Contains(lines[i], w) {
			i++
		}
		if i == len(lines) {
			t.Errorf("want a problem with %q, got:\n%s", w, err)
			return
		}
		lines = append(lines[:i:i], lines[i+1:]...)
	}
	if len(lines) > 0 {
		t.Errorf("want no further problem, got:\n%s", strings.Join(lines, "\n"))
	}
}

func TestMissingFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "no.yaml"), nil)
	if runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), "no such file") || runner.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
}

func TestDirectoryForFile(t *testing.T) {
	_, err := Load(t.TempDir(), nil)
	if runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), "want a YAML file, got a directory") || !strings.Contains(runner.HintOf(err), "target.directory") {
		t.Errorf("got %v, hint %q", err, runner.HintOf(err))
	}
}

// TestTargetBesideTheRest: what is wrong with a target's directory is reported
// with all that is wrong elsewhere, and rules over values that are wrong say
// nothing.
func TestTargetBesideTheRest(t *testing.T) {
	bare := model(t, qwen, nil)
	for name, c := range map[string]struct {
		set, want []string
	}{
		"other problems": {[]string{"training.steps=-1", "run.name=../x"},
			[]string{"training.steps: want at least 0", "run.name: want", "target.directory: want a directory with a tokenizer"}},
		"values it would be compared with": {[]string{"training.buckets=[]", "drafter.heads=-4", "drafter.captured_layers=0"},
			[]string{"training.buckets: want 1 to 3", "drafter.heads: want at least 0", "drafter.captured_layers: want at least 1", "target.directory: want a directory with a tokenizer"}},
		"no model": {[]string{"training.steps=-1", "target.directory=" + t.TempDir()},
			[]string{"training.steps: want at least 0", "target.directory: read model"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := valid + "target: {directory: " + bare + "}\n"
			text = strings.Replace(text, "data: {regenerate", "data: {files: [a], heldout_files: [b], regenerate", 1)
			set := append([]string{"drafter.mask_token_id=258"}, c.set...)
			_, err := parseAll("f.yaml", []byte(text), set)
			checkProblems(t, err, c.want)
		})
	}
}

func TestNameFromFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "My Run (2).yaml")
	if err := os.WriteFile(file, []byte(valid), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file, nil)
	if err != nil || c.Run.Name != "my-run-2" {
		t.Errorf("want my-run-2, got %v, %v", c.Run.Name, err)
	}
}

// TestRowsFollowTheDevice: how a target makes rows, where a file leaves it open, and where it says.
func TestRowsFollowTheDevice(t *testing.T) {
	gpu := []string{"workers.device=cuda", "training.compute_dtype=bfloat16", "target.dtype=bfloat16"}
	for _, row := range []struct {
		set               []string
		attention, replay string
	}{
		{nil, "sdpa", "false"},
		{[]string{"target.attention=auto", "target.replay=auto"}, "sdpa", "false"},
		{gpu, "flex", "true"},
		{append(gpu[:2:2], "target.dtype=float32"), "sdpa", "false"}, // flex has no kernels for it that pay, and experts cannot be recorded
		{append(gpu[:3:3], "target.attention=sdpa", "target.replay=false"), "sdpa", "false"},
		{append(gpu[:3:3], "target.attention=flex", "target.replay=true"), "flex", "true"},
	} {
		c, err := parseAll("f.yaml", []byte(valid), row.set)
		if err != nil || c.Target.Attention != row.attention || c.Target.Replay != row.replay {
			t.Errorf("%v: want %s and %s, got %+v, %v", row.set, row.attention, row.replay, c.Target, err)
			continue
		}
		sameAfterRoundTrip(t, c)
	}
}

// TestAttentionFollowsTheDevice: what a file leaves open, and what it says.
func TestAttentionFollowsTheDevice(t *testing.T) {
	for _, row := range []struct {
		set  []string
		want string
	}{
		{nil, "sdpa"},
		{[]string{"drafter.attention=auto"}, "sdpa"},
		{[]string{"drafter.attention=sdpa"}, "sdpa"},
		{[]string{"workers.device=cuda", "training.compute_dtype=bfloat16"}, "flex"},
		{[]string{"drafter.attention=auto", "workers.device=cuda", "training.compute_dtype=bfloat16"}, "flex"},
		{[]string{"workers.device=cuda", "drafter.attention=sdpa"}, "sdpa"}, // dense, and allowed
		{[]string{"workers.device=cuda", "drafter.attention=flex", "training.compute_dtype=bfloat16"}, "flex"},
	} {
		c, err := parseAll("f.yaml", []byte(valid), row.set)
		if err != nil || c.Drafter.Attention != row.want {
			t.Errorf("%v: want %s, got %v, %v", row.set, row.want, c.Drafter.Attention, err)
			continue
		}
		sameAfterRoundTrip(t, c)
	}
}
