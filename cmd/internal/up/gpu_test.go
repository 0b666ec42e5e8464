package up

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// smi puts an nvidia-smi on the path that lists so many GPUs of 140 GiB; the
// named ones are used by process 77.
func smi(t *testing.T, gpus int, busy ...int) {
	t.Helper()
	query, compute := "", ""
	for i := range gpus {
		query += fmt.Sprintf("%d, NVIDIA H200, GPU-%04d, 143771, 580.65.06, Disabled, 300\\n", i, i)
		if slices.Contains(busy, i) {
			compute += fmt.Sprintf("GPU-%04d, 77\\n", i)
		}
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$1\" in\n--query-gpu*) printf '%s' ;;\n--query-compute*) printf '%s' ;;\ntopo) printf 'GPU0 X\\n' ;;\nesac\n", query, compute)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	os.Unsetenv("CUDA_VISIBLE_DEVICES") // given back by Setenv's cleanup
}

// certificate reads what a worker certified.
func certificate(t *testing.T, u *up, name string) *workerv1.Certificate {
	t.Helper()
	b, err := os.ReadFile(u.dir.join("certificates", name+".1.json"))
	if err != nil {
		t.Fatal(err)
	}
	c := &workerv1.Certificate{}
	if err := protojson.Unmarshal(b, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOneGPU: a target and a drafter share it, in turns; each sees it alone,
// as cuda:0, whatever the host's own variables say.
func TestOneGPU(t *testing.T) {
	b := newBench(t)
	smi(t, 2)
	for name, value := range map[string]string{"CUDA_VISIBLE_DEVICES": "1", "NCCL_NVLS_ENABLE": "1", "NCCL_CUMEM_ENABLE": "1", "TORCHINDUCTOR_CACHE_DIR": "/host"} {
		t.Setenv(name, value)
	}
	f, u := b.run("gpu", false, nil, "workers.device=cuda", "arenas.kind=memfd", "drafter.attention=sdpa", "workers.drafters=1", "workers.turns=0", "workers.deterministic=true")
	b.check(f, u)
	if u.plan.Turns["GPU-0001"] != 1 || len(u.plan.Devices) != 1 || u.jobDevice() != "GPU-0001" {
		t.Errorf("plan: turns %v, devices %+v, jobs on %s", u.plan.Turns, u.plan.Devices, u.jobDevice())
	}
	for _, w := range u.last.Workers {
		if w.Device != "GPU-0001" {
			t.Errorf("%s: on %s", w.Name, w.Device)
		}
	}
	for _, name := range []string{"target-0", "drafter-0"} {
		c := certificate(t, u, name)
		if c.Device != "cuda:0" {
			t.Errorf("%s: told %s", name, c.Device)
		}
		for variable, want := range map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-0001", "NCCL_CUMEM_ENABLE": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
			"TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "NCCL_NVLS_ENABLE": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
			"NVSHMEM_DISABLE_NVLS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} {
			if got := c.Environment[variable]; got != want {
				t.Errorf("%s: %s: want %s, got %s", name, variable, want, got)
			}
		}
	}
	m, err := os.ReadFile(u.dir.join("manifest.json"))
	if err != nil || !strings.Contains(string(m), `NVIDIA H200, driver 580.65.06"`) || !strings.Contains(string(m), `"bit_identical": false`) {
		t.Errorf("manifest: %s, %v", m, err)
	}
}

// TestACPUSeesNoGPU: nothing of a GPU reaches a worker on a CPU.
func TestACPUSeesNoGPU(t *testing.T) {
	b := newBench(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	f, u := b.run("cpu", false, nil)
	b.check(f, u)
	e := certificate(t, u, "drafter-1").Environment
	if v, ok := e["CUDA_VISIBLE_DEVICES"]; !ok || v != "" {
		t.Errorf("CUDA_VISIBLE_DEVICES: got %q, %v", v, ok)
	}
	for name := range e {
		if strings.HasPrefix(name, "TORCHINDUCTOR_") || strings.HasPrefix(name, "CUBLAS_") {
			t.Errorf("%s is set", name)
		}
	}
}

// onGPU is a run before it began, on a GPU.
func onGPU(t *testing.T, set ...string) *up {
	t.Helper()
	c, err := config.Load("", append(append(append([]string{}, sets...), "workers.device=cuda", "drafter.attention=flex", "training.compute_dtype=bfloat16", "workers.drafters=1"), set...))
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	dir, err := openRun(filepath.Join(b.root, "runs"), "run", intent{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.close() })
	u := &up{config: c, dir: dir, cores: 16, cache: t.TempDir(), environment: &pyenv.Env{Packages: map[string]string{"torch": "2.11.0+cu130", "triton": "3.6.0"}}}
	a := &around{u: u}
	if err := a.log(); err != nil {
		t.Fatal(err)
	}
	if err := a.events(); err != nil {
		t.Fatal(err)
	}
	a.cancel = func() {}
	t.Cleanup(func() { a.close() })
	return u
}

// TestAttentionOfRows: each role is told its own, and the sizes of kernels are a drafter's.
func TestAttentionOfRows(t *testing.T) {
	for _, c := range []struct {
		set             []string
		target, drafter string
	}{
		{[]string{"target.dtype=bfloat16"}, "flex", "flex"},
		{[]string{"target.dtype=bfloat16", "target.attention=sdpa"}, "sdpa", "flex"},
		{[]string{"target.dtype=bfloat16", "drafter.attention=sdpa"}, "flex", "sdpa"},
	} {
		u := onGPU(t, c.set...)
		s := newBench(t).settings(u.config)
		for role, want := range map[runner.Role]string{runner.Target: c.target, runner.Drafter: c.drafter} {
			got := s.configuration(runner.Life{Worker: runner.Worker{Role: role}, Generation: 1}, u.dir, dataset{}, "cuda:0")
			if got.Attention != want || (got.Flex == nil) != (role == runner.Target) {
				t.Errorf("%v: %v: want %s, got %s, %v", c.set, role, want, got.Attention, got.Flex)
			}
		}
	}
}

// TestReplayedRows: how a target makes its rows is its own affair, which a run
// may change: its workers are told, and no manifest, drafter or job.
func TestReplayedRows(t *testing.T) {
	for set, want := range map[string]bool{"target.replay=true": true, "target.replay=false": false} {
		u := onGPU(t, set)
		s := newBench(t).settings(u.config)
		told := func(role runner.Role) *workerv1.Target {
			return s.configuration(runner.Life{Worker: runner.Worker{Role: role}, Generation: 1}, u.dir, dataset{}, "cuda:0").Target
		}
		target := told(runner.Target)
		if target.Replay != want || told(runner.Drafter).Replay || s.target.Replay {
			t.Errorf("%s: got %v, of a drafter %v, of the run %v", set, target, told(runner.Drafter), s.target)
		}
		if target.Replay = false; target.String() != s.target.String() {
			t.Errorf("%s: the rest: want %v, got %v", set, s.target, target)
		}
	}
	if !free("target.replay") || !free("target.attention") || free("target.dtype") {
		t.Error("want target.replay and target.attention to be free in a run, and target.dtype not")
	}
}

// TestPreflightOnGPUs: what cannot be is refused before anything is started.
func TestPreflightOnGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		gpus int
		busy []int
		set  []string
		kind runner.Kind
		says string
	}{
		"no GPU":        {0, nil, nil, runner.Exhausted, "want a GPU, got none"},
		"used":          {1, []int{0}, nil, runner.Exhausted, "processes [77] use it"},
		"used, allowed": {1, []int{0}, []string{"workers.busy_devices=allow"}, runner.Kind(0), ""},
		"another":       {2, []int{0}, []string{"workers.devices=[1]"}, runner.Kind(0), ""},
		"not there":     {1, nil, []string{"workers.devices=[1]"}, runner.Invalid, "got 1; there are 0 (GPU-0000)"},
		"apart on one":  {1, nil, []string{"workers.colocate=false"}, runner.Invalid, "want 2 GPUs of their own, got 1"},
		"too large":     {1, nil, []string{"target.embedded.hidden_size=16384", "target.embedded.intermediate_size=262144", "target.embedded.layers=8"}, runner.Exhausted, "want"},
	} {
		t.Run(name, func(t *testing.T) {
			smi(t, c.gpus, c.busy...)
			err := onGPU(t, c.set...).preflight(t.Context())
			if c.says == "" && err != nil || c.says != "" && (runner.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) || runner.HintOf(err) == "") {
				t.Errorf("want %v %q, got %v, hint %q", c.kind, c.says, err, runner.HintOf(err))
			}
		})
	}
}

// TestKernels: the cache of compiled kernels is named by what they depend on,
// lies where the configuration says, and workers are told of it.
func TestKernels(t *testing.T) {
	smi(t, 1)
	open := func(u *up) string {
		if err := u.preflight(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := u.openKernels(newBench(t).settings(u.config)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { u.kernels.Close() })
		return u.kernels.Dir
	}
	first := onGPU(t)
	dir := open(first)
	if rel, err := filepath.Rel(first.cache, dir); err != nil || filepath.Dir(rel) != "kernels" {
		t.Errorf("it lies in %s", dir)
	}
	if got := first.compiling(); !slices.Equal(got, []string{"TORCHINDUCTOR_CACHE_DIR=" + dir + "/inductor", "TRITON_CACHE_DIR=" + dir + "/triton", "TORCHINDUCTOR_COMPILE_THREADS=16"}) {
		t.Errorf("workers are told %v", got)
	}
	place := t.TempDir()
	other := onGPU(t, "warmup.cache_directory="+place, "warmup.width=4")
	if got := open(other); got != filepath.Join(place, "kernels", filepath.Base(dir)) {
		t.Errorf("elsewhere: got %s", got)
	}
	if got := other.compiling(); !slices.Contains(got, "TORCHINDUCTOR_COMPILE_THREADS=4") {
		t.Errorf("four at once are told %v", got)
	}
	if got := open(onGPU(t, "training.buckets=[128]")); filepath.Base(got) == filepath.Base(dir) {
		t.Error("another bucket: the same name")
	}
	if got := open(onGPU(t, "drafter.precision=fp8", "training.anchors=16")); filepath.Base(got) == filepath.Base(dir) {
		t.Error("products in fp8: the same name")
	}
	without := onGPU(t)
	delete(without.environment.Packages, "triton")
	if err := without.openKernels(newBench(t).settings(without.config)); runner.KindOf(err) != runner.NotFound || !strings.Contains(err.Error(), "triton: want its version") {
		t.Errorf("without Triton: got %v", err)
	}
	rows := onGPU(t, "drafter.attention=sdpa", "target.dtype=bfloat16")
	if got := open(rows); filepath.Base(got) == filepath.Base(dir) || len(rows.compiling()) == 0 {
		t.Errorf("of a target alone: got %s, and workers are told %v", got, rows.compiling())
	}
	dense := onGPU(t, "drafter.attention=sdpa", "target.attention=sdpa")
	if err := dense.openKernels(newBench(t).settings(dense.config)); err != nil || dense.kernels != nil || len(dense.compiling()) != 0 {
		t.Errorf("nothing is compiled: got %v, %v", dense.kernels, err)
	}
}

func TestCheckTorch(t *testing.T) {
	u := onGPU(t)
	if err := u.checkTorch("2.11.0+cpu"); runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), "built with CUDA") {
		t.Errorf("without CUDA: got %v", err)
	}
	for _, fine := range []string{"2.11.0+cu130", "2.11.0", "2.11.0a0+git1"} {
		if err := u.checkTorch(fine); err != nil {
			t.Errorf("%s: %v", fine, err)
		}
	}
	u.config.Workers.Device = "cpu"
	if err := u.checkTorch("2.11.0+cpu"); err != nil {
		t.Errorf("on a CPU: %v", err)
	}
}
