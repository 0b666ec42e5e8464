package up

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/kernels"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// onlyGPU is what a process on a GPU is told: it sees exactly one, whichever it is.
const onlyGPU = "cuda:0"

// told is a device, "cpu" or a GPU's UUID, as Python is told it.
func told(device string) string {
	if device == placement.CPU {
		return device
	}
	return onlyGPU
}

// noMulticast are ours where the host does not set them: a process that dies
// while it takes part in NVLink multicast can leave the fabric of a shared
// machine in a state that others suffer from.
var noMulticast = [][2]string{{"NCCL_NVLS_ENABLE", "0"}, {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"}, {"NVSHMEM_DISABLE_NVLS", "1"}}

// seeing is what a process on a device is given: on a CPU no GPU at all, else
// that one alone, and collectives that leave a clean context when a peer dies
// (an aborted group poisons it where NCCL maps memory by itself).
func seeing(device string) []string {
	if device == placement.CPU {
		return []string{"CUDA_VISIBLE_DEVICES="}
	}
	set := []string{"CUDA_VISIBLE_DEVICES=" + device, "LOCAL_RANK=0", "NCCL_CUMEM_ENABLE=0", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0",
		"TORCH_NCCL_ENABLE_MONITORING=0", "TORCH_NCCL_DUMP_ON_TIMEOUT=0"}
	for _, x := range noMulticast {
		value := x[1]
		if own, ok := os.LookupEnv(x[0]); ok {
			value = own
		}
		set = append(set, x[0]+"="+value)
	}
	return set
}

// compiling is what a worker of this run is given for its compiler: where the
// node's cache is, how many threads it has, and determinism where it is asked for.
func (u *up) compiling() (set []string) {
	if u.config.Workers.Device == placement.CPU {
		return nil
	}
	if u.kernels != nil {
		set = append(u.kernels.Environment(), fmt.Sprintf("TORCHINDUCTOR_COMPILE_THREADS=%d", kernels.CompileThreads(u.cores, u.config.WarmUp.Width)))
	}
	if u.config.Workers.Deterministic == "true" {
		set = append(set, "CUBLAS_WORKSPACE_CONFIG=:4096:8")
	}
	return set
}

// starts notes where a worker's newest life runs: at first where it was placed.
func (u *up) starts(w runner.Worker, device string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at = map[runner.Worker]string{}
	}
	u.at[w] = device
}

// deviceOf gives where a worker runs, or was placed.
func (u *up) deviceOf(w runner.Worker) string {
	u.mu.Lock()
	at := u.at[w]
	u.mu.Unlock()
	if at != "" {
		return at
	}
	for _, placed := range u.plan.Workers {
		if placed.Name == w {
			return placed.Device
		}
	}
	return placement.CPU // tests without a plan
}

// jobDevice is where jobs run: the first GPU, or the CPU.
func (u *up) jobDevice() string {
	if len(u.plan.Devices) > 0 {
		return u.plan.Devices[0].UUID
	}
	return placement.CPU
}

// checkTorch refuses a torch that was built without CUDA, where a GPU is to be used.
func (u *up) checkTorch(version string) error {
	if u.config.Workers.Device == placement.CPU || !strings.HasSuffix(version, "+cpu") {
		return nil
	}
	return runner.Errorf(runner.Invalid, "use environment: want a torch that was built with CUDA for workers.device cuda, got %s", version).
		WithHint("install one that fits the driver, or name another Python in python.interpreter")
}

// openKernels opens the cache of compiled kernels, where something is compiled.
func (u *up) openKernels(s *settings) error {
	if u.config.Workers.Device == placement.CPU || u.config.Drafter.Attention != "flex" && u.config.Target.Attention != "flex" {
		return nil
	}
	root := u.config.WarmUp.CacheDirectory
	if root == "" {
		root = u.cache
	}
	t := s.training
	names, driver := u.used()
	shapes := map[string]any{"drafter": s.drafter, "layer_ids": s.target.LayerIds, "buckets": t.Buckets, "anchors": t.Anchors, "compute_dtype": t.ComputeDtype}
	if u.config.Target.Attention == "flex" {
		shapes["target"] = s.target // of its own kernels: the model, by its directory
	}
	c, err := kernels.Open(root, kernels.Facts{Torch: u.environment.Packages["torch"], Triton: u.environment.Packages["triton"], GPUs: names, Driver: driver, Shapes: shapes})
	if err != nil {
		return err
	}
	u.kernels = c
	u.note("kernels", "compiled kernels are kept in "+c.Dir)
	return nil
}

// used gives the names of the GPUs that the run is on, each once, and their driver.
func (u *up) used() (names []string, driver string) {
	for _, g := range u.gpus {
		for _, d := range u.plan.Devices {
			if d.UUID == g.UUID {
				names, driver = append(names, g.Name), g.Driver
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), driver
}

// machine names what a run's bits depend on besides its settings.
func (u *up) machine() string {
	names, driver := u.used()
	if len(names) == 0 {
		return processor()
	}
	return fmt.Sprintf("%s; %s, driver %s", processor(), strings.Join(names, " and "), driver)
}

// enterKernels looks after the compiled kernels before a worker warms up.
func (u *up) enterKernels() {
	if u.kernels == nil {
		return
	}
	did, err := u.kernels.Enter()
	if err != nil {
		u.warn("kernels", err.Error())
	}
	if did != "" {
		u.warn("kernels", "compiled kernels are made again: "+did)
	}
}

// leaveKernels seals them once a certificate holds.
func (u *up) leaveKernels(certified bool) {
	if u.kernels == nil {
		return
	}
	if err := u.kernels.Leave(certified); err != nil {
		u.warn("kernels", err.Error())
	}
}
