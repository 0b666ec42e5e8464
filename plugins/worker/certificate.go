package worker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strings"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// passes is how often a warm-up runs every bucket: the second time nothing may
// be compiled any more.
const passes = 2

// sdpaKernel is the kernel's name where attention is plain.
const sdpaKernel = "scaled_dot_product_attention"

// flexKernel is in the name of every kernel that the compiler makes for flex attention.
const flexKernel = "flex_attention"

// offSwitches are variables that turn the compiler off.
var offSwitches = []string{"TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"}

// toleranceOf gives the largest difference from its oracle that a worker may
// allow itself, by role and dtype. A target with experts may turn a near tie of
// its router in bfloat16, which moves single tokens, and one of many blocks rounds
// more than one of few; a lost window is twice this, a leak more.
func toleranceOf(role workerv1.Role, dtype string) float64 {
	switch {
	case dtype == "float32":
		return 1e-3
	case dtype == "bfloat16" && role == workerv1.Role_ROLE_TARGET:
		return 0.15
	case dtype == "bfloat16":
		return 5e-2
	}
	return 0
}

// Check refuses a certificate in which anything is missing, false or not what
// the configuration asked for, and gives what is kept of it. Every field is
// looked at; an error names the first one that is wrong.
func Check(c *workerv1.Certificate, cfg *workerv1.Configuration, device string) (runner.Certificate, error) {
	if c == nil || cfg == nil {
		return runner.Certificate{}, refuse("certificate", "one", "none")
	}
	for _, check := range []func(*workerv1.Certificate, *workerv1.Configuration, string) error{
		checkPresent, checkIdentity, checkCalls, checkProducts, checkCompiles, checkMeasured, checkState, checkOracle,
	} {
		if err := check(c, cfg, device); err != nil {
			return runner.Certificate{}, err
		}
	}
	return runner.Certificate{
		Fingerprint: c.Fingerprint, Attention: c.Attention, Buckets: slices.Clone(c.Buckets), Graphs: c.GetGraphs(),
		Cache: c.Cache, DenseCalls: c.GetDenseCalls(), SecondPassCompiles: c.GetSecondPassCompiles(),
		Seconds: maps.Clone(c.Seconds), PeakBytes: c.PeakBytes, StepMS: c.StepMs, DenseDifference: c.GetDenseDifference(),
		Precision: c.Precision, FP8Products: c.GetLinearProducts() + c.GetHeadProducts(),
	}, nil
}

func refuse(field string, want, got any) error {
	return runner.Errorf(runner.Invalid, "check certificate: %s: want %v, got %v", field, want, got)
}

// checkPresent: nothing was left out that may be zero in truth. Zeros of the
// other fields are refused where they are checked.
func checkPresent(c *workerv1.Certificate, _ *workerv1.Configuration, _ string) error {
	m := c.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.HasPresence() && !m.Has(f) {
			return refuse(string(f.Name()), "a value", "none")
		}
	}
	return nil
}

// checkIdentity: whose certificate it is.
func checkIdentity(c *workerv1.Certificate, cfg *workerv1.Configuration, device string) error {
	digest, err := hex.DecodeString(c.Fingerprint)
	switch {
	case err != nil || len(digest) != sha256.Size:
		return refuse("fingerprint", "a SHA-256 in hex", clean(c.Fingerprint, 80))
	case cfg.Attention != "sdpa" && cfg.Attention != "flex", c.Attention != cfg.Attention:
		return refuse("attention", cfg.Attention, clean(c.Attention, 80))
	case len(c.Buckets) == 0 || !slices.Equal(c.Buckets, cfg.GetTraining().GetBuckets()):
		return refuse("buckets", cfg.GetTraining().GetBuckets(), c.Buckets)
	case device == "" || c.Device != device:
		return refuse("device", device, clean(c.Device, 80))
	case c.Torch == "":
		return refuse("torch", "a version", "none")
	case len(c.Environment) == 0:
		return refuse("environment", "some", "none")
	}
	for _, name := range offSwitches {
		if v := c.Environment[name]; c.Attention == "flex" && v != "" && v != "0" {
			return refuse("environment", name+" unset", clean(v, 80))
		}
	}
	return nil
}

// checkCalls: the attention that was asked for ran, as often as it had to, and
// no other.
func checkCalls(c *workerv1.Certificate, cfg *workerv1.Configuration, _ string) error {
	want := uint64(layersRun(cfg)) * uint64(len(c.Buckets)) * passes
	switch {
	case c.Passes != passes:
		return refuse("passes", passes, c.Passes)
	case want == 0:
		return refuse("role", "one with layers to run", cfg.GetRole())
	case c.AttentionCalls != want:
		return refuse("attention_calls", want, c.AttentionCalls)
	case c.GetDenseCalls() != 0:
		return refuse("dense_calls", 0, c.GetDenseCalls())
	case len(c.Kernels) == 0 || slices.Contains(c.Kernels, ""):
		return refuse("kernels", "names", c.Kernels)
	case c.Attention == "sdpa" && !slices.Equal(c.Kernels, []string{sdpaKernel}):
		return refuse("kernels", sdpaKernel, c.Kernels)
	case c.Attention == "flex" && cfg.GetRole() == workerv1.Role_ROLE_DRAFTER && !bothWays(c.Kernels):
		return refuse("kernels", "those of flex_attention alone, forward and backward", c.Kernels)
	case c.Attention == "flex" && cfg.GetRole() == workerv1.Role_ROLE_TARGET && !forwardOnly(c.Kernels):
		return refuse("kernels", "those of flex_attention's forward alone", c.Kernels)
	}
	return nil
}

// bothWays tells whether the kernels are those of compiled flex attention, with
// at least one of the forward and one of the backward.
func bothWays(kernels []string) bool {
	var forward, backward bool
	for _, name := range kernels {
		if !strings.Contains(name, flexKernel) {
			return false
		}
		isBackward := strings.Contains(name, flexKernel+"_backward")
		forward, backward = forward || !isBackward, backward || isBackward
	}
	return forward && backward
}

// forwardOnly tells whether the kernels are those of compiled flex attention, none of a backward.
func forwardOnly(kernels []string) bool {
	return !slices.ContainsFunc(kernels, func(name string) bool {
		return !strings.Contains(name, flexKernel) || strings.Contains(name, flexKernel+"_backward")
	})
}

// layersRun counts the layers with attention that one pass runs: all of a
// drafter's, a target's up to the last captured one.
func layersRun(cfg *workerv1.Configuration) (layers uint32) {
	switch cfg.GetRole() {
	case workerv1.Role_ROLE_DRAFTER:
		return cfg.GetDrafter().GetLayers()
	case workerv1.Role_ROLE_TARGET:
		for _, id := range cfg.GetTarget().GetLayerIds() {
			layers = max(layers, id+1)
		}
	}
	return layers
}

// checkCompiles: what was compiled, and nothing the second time.
func checkCompiles(c *workerv1.Certificate, _ *workerv1.Configuration, _ string) error {
	buckets := uint32(len(c.Buckets)) // shapes are static, so each has a graph of its own
	if c.GetSecondPassCompiles() != 0 {
		return refuse("second_pass_compiles", 0, c.GetSecondPassCompiles())
	}
	if c.Attention == "sdpa" {
		switch {
		case c.GetGraphs() != 0:
			return refuse("graphs", 0, c.GetGraphs())
		case c.Cache != "none":
			return refuse("cache", "none", clean(c.Cache, 80))
		case c.GetCacheHits() != 0:
			return refuse("cache_hits", 0, c.GetCacheHits())
		case c.GetCacheMisses() != 0:
			return refuse("cache_misses", 0, c.GetCacheMisses())
		case c.GetFirstPassCompiles() != 0:
			return refuse("first_pass_compiles", 0, c.GetFirstPassCompiles())
		}
		return nil
	}
	switch {
	case c.GetGraphs() < buckets:
		return refuse("graphs", "one a bucket or more", c.GetGraphs())
	case c.GetFirstPassCompiles() < buckets:
		return refuse("first_pass_compiles", "one a bucket or more", c.GetFirstPassCompiles())
	case c.Cache != "cold" && c.Cache != "warm":
		return refuse("cache", "cold or warm", clean(c.Cache, 80))
	case c.Cache == "cold" && c.GetCacheMisses() == 0:
		return refuse("cache_misses", "more than 0 where cold", c.GetCacheMisses())
	case c.Cache == "warm" && c.GetCacheMisses() != 0:
		return refuse("cache_misses", "0 where warm", c.GetCacheMisses())
	case c.Cache == "warm" && c.GetCacheHits() == 0:
		return refuse("cache_hits", "more than 0 where warm", c.GetCacheHits())
	}
	return nil
}

// checkMeasured: figures that a real run has.
func checkMeasured(c *workerv1.Certificate, _ *workerv1.Configuration, _ string) error {
	for phase, s := range c.Seconds {
		if phase == "" || !(s >= 0) || math.IsInf(s, 0) {
			return refuse("seconds of "+clean(phase, 80), "0 or more", s)
		}
	}
	for _, phase := range []string{"first_pass", "oracle", "record", "second_pass"} {
		if _, ok := c.Seconds[phase]; !ok {
			return refuse("seconds of "+phase, "some", "none")
		}
	}
	switch {
	case !(c.Seconds["total"] > 0):
		return refuse("seconds of total", "more than 0", c.Seconds["total"])
	case !(c.StepMs > 0) || math.IsInf(c.StepMs, 0):
		return refuse("step_ms", "more than 0", c.StepMs)
	case c.PeakBytes == 0:
		return refuse("peak_bytes", "more than 0", 0)
	}
	return nil
}

// checkState: warm-up left parameters, optimiser state and RNG as they were,
// and what a drafter must have exercised it has.
func checkState(c *workerv1.Certificate, cfg *workerv1.Configuration, _ string) error {
	drafter := cfg.GetRole() == workerv1.Role_ROLE_DRAFTER
	zero := make([]byte, sha256.Size)
	switch {
	case len(c.DigestBefore) != sha256.Size || bytes.Equal(c.DigestBefore, zero):
		return refuse("digest_before", "32 bytes", hex.EncodeToString(c.DigestBefore))
	case len(c.DigestAfter) != sha256.Size:
		return refuse("digest_after", "32 bytes", hex.EncodeToString(c.DigestAfter))
	case !bytes.Equal(c.DigestBefore, c.DigestAfter):
		return refuse("digest_after", hex.EncodeToString(c.DigestBefore), hex.EncodeToString(c.DigestAfter))
	case c.GetGradients() != drafter:
		return refuse("gradients", drafter, c.GetGradients())
	case c.GetPaddedAnchors() != drafter:
		return refuse("padded_anchors", drafter, c.GetPaddedAnchors())
	}
	return nil
}

// checkOracle: the kernels agree with the dense oracle, within a tolerance that
// the worker may not choose too large.
func checkOracle(c *workerv1.Certificate, cfg *workerv1.Configuration, _ string) error {
	dtype := cfg.GetTraining().GetComputeDtype()
	if cfg.GetRole() == workerv1.Role_ROLE_TARGET {
		dtype = cfg.GetTarget().GetDtype()
	}
	allowed := toleranceOf(cfg.GetRole(), dtype)
	switch {
	case allowed == 0:
		return refuse("dtype", "float32 or bfloat16", clean(dtype, 80))
	case !(c.DenseTolerance > 0 && c.DenseTolerance <= allowed):
		return refuse("dense_tolerance", allowed, c.DenseTolerance)
	case !(c.GetDenseDifference() >= 0 && c.GetDenseDifference() <= c.DenseTolerance):
		return refuse("dense_difference", c.DenseTolerance, c.GetDenseDifference())
	}
	return nil
}
