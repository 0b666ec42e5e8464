package worker_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/plugins/worker/workertest"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
)

// flexed makes a certificate one of compiled kernels.
func flexed(c *workerv1.Certificate) {
	c.Attention, c.Kernels, c.Graphs, c.Cache = "flex", []string{"triton_tem_fused_flex_attention_0", "triton_tem_fused_flex_attention_backward_2"}, 4, "cold"
	c.FirstPassCompiles, c.CacheMisses = 4, 4
}

// falsify names what must be refused: every field, missing and false.
var falsify = []struct {
	field  string
	role   workerv1.Role // unspecified: both
	flex   bool
	change func(*workerv1.Certificate)
}{
	{"fingerprint", 0, false, func(c *workerv1.Certificate) { c.Fingerprint = "" }},
	{"fingerprint", 0, false, func(c *workerv1.Certificate) { c.Fingerprint = strings.Repeat("g", 64) }},
	{"attention", 0, false, func(c *workerv1.Certificate) { c.Attention = "" }},
	{"attention", 0, false, func(c *workerv1.Certificate) { c.Attention = "flex" }},
	{"buckets", 0, false, func(c *workerv1.Certificate) { c.Buckets = nil }},
	{"buckets", 0, false, func(c *workerv1.Certificate) { c.Buckets = []uint32{128} }},
	{"buckets", 0, false, func(c *workerv1.Certificate) { c.Buckets = []uint32{256, 128} }},
	{"passes", 0, false, func(c *workerv1.Certificate) { c.Passes = 1 }},
	{"graphs", 0, false, func(c *workerv1.Certificate) { c.Graphs = 1 }},
	{"graphs", 0, true, func(c *workerv1.Certificate) { c.Graphs = 0 }},
	{"cache", 0, false, func(c *workerv1.Certificate) { c.Cache = "" }},
	{"cache", 0, false, func(c *workerv1.Certificate) { c.Cache = "cold" }},
	{"cache", 0, true, func(c *workerv1.Certificate) { c.Cache = "none" }},
	{"cache_hits", 0, false, func(c *workerv1.Certificate) { c.CacheHits = 1 }},
	{"cache_hits", 0, true, func(c *workerv1.Certificate) { c.Cache = "warm" }},
	{"cache_misses", 0, false, func(c *workerv1.Certificate) { c.CacheMisses = 1 }},
	{"cache_misses", 0, true, func(c *workerv1.Certificate) { c.CacheMisses = 0 }},
	{"seconds", 0, false, func(c *workerv1.Certificate) { c.Seconds = nil }},
	{"seconds of total", 0, false, func(c *workerv1.Certificate) { c.Seconds["total"] = 0 }},
	{"seconds of oracle", 0, false, func(c *workerv1.Certificate) { delete(c.Seconds, "oracle") }},
	{"seconds of build", 0, false, func(c *workerv1.Certificate) { c.Seconds["build"] = -1 }},
	{"seconds of build", 0, false, func(c *workerv1.Certificate) { c.Seconds["build"] = math.NaN() }},
	{"kernels", 0, false, func(c *workerv1.Certificate) { c.Kernels = nil }},
	{"kernels", 0, false, func(c *workerv1.Certificate) { c.Kernels = append(c.Kernels, "math") }},
	{"kernels", 0, true, func(c *workerv1.Certificate) { c.Kernels = []string{"scaled_dot_product_attention"} }},
	{"kernels", 0, true, func(c *workerv1.Certificate) { c.Kernels = nil }},
	{"kernels", 0, true, func(c *workerv1.Certificate) { c.Kernels = c.Kernels[:1] }},
	{"kernels", 0, true, func(c *workerv1.Certificate) { c.Kernels = c.Kernels[1:] }},
	{"kernels", 0, true, func(c *workerv1.Certificate) { c.Kernels = append(slices.Clone(c.Kernels), "sdpa_dense") }},
	{"attention_calls", 0, false, func(c *workerv1.Certificate) { c.AttentionCalls-- }},
	{"attention_calls", 0, false, func(c *workerv1.Certificate) { c.AttentionCalls = 0 }},
	{"dense_calls", 0, false, func(c *workerv1.Certificate) { c.DenseCalls = 1 }},
	{"first_pass_compiles", 0, false, func(c *workerv1.Certificate) { c.FirstPassCompiles = 1 }},
	{"first_pass_compiles", 0, true, func(c *workerv1.Certificate) { c.FirstPassCompiles = 0 }},
	{"second_pass_compiles", 0, false, func(c *workerv1.Certificate) { c.SecondPassCompiles = 1 }},
	{"peak_bytes", 0, false, func(c *workerv1.Certificate) { c.PeakBytes = 0 }},
	{"step_ms", 0, false, func(c *workerv1.Certificate) { c.StepMs = 0 }},
	{"step_ms", 0, false, func(c *workerv1.Certificate) { c.StepMs = math.Inf(1) }},
	{"step_ms", 0, false, func(c *workerv1.Certificate) { c.StepMs = math.NaN() }},
	{"digest_before", 0, false, func(c *workerv1.Certificate) { c.DigestBefore = nil }},
	{"digest_before", 0, false, func(c *workerv1.Certificate) { c.DigestBefore, c.DigestAfter = make([]byte, 32), make([]byte, 32) }},
	{"digest_after", 0, false, func(c *workerv1.Certificate) { c.DigestAfter = c.DigestAfter[:31] }},
	{"digest_after", 0, false, func(c *workerv1.Certificate) {
		c.DigestAfter = append([]byte{c.DigestAfter[0] ^ 1}, c.DigestAfter[1:]...)
	}},
	{"dense_difference", 0, false, func(c *workerv1.Certificate) { c.DenseDifference = 1e-3 }},
	{"dense_difference", 0, false, func(c *workerv1.Certificate) { c.DenseDifference = math.NaN() }},
	{"dense_difference", 0, false, func(c *workerv1.Certificate) { c.DenseDifference = -1 }},
	{"dense_tolerance", 0, false, func(c *workerv1.Certificate) { c.DenseTolerance = 0 }},
	{"dense_tolerance", 0, false, func(c *workerv1.Certificate) { c.DenseTolerance = 0.01 }},
	{"device", 0, false, func(c *workerv1.Certificate) { c.Device = "" }},
	{"device", 0, false, func(c *workerv1.Certificate) { c.Device = "cuda:0" }},
	{"torch", 0, false, func(c *workerv1.Certificate) { c.Torch = "" }},
	{"environment", 0, false, func(c *workerv1.Certificate) { c.Environment = nil }},
	{"environment", 0, true, func(c *workerv1.Certificate) { c.Environment["TORCH_COMPILE_DISABLE"] = "1" }},
	{"environment", 0, true, func(c *workerv1.Certificate) { c.Environment["TORCHDYNAMO_DISABLE"] = "1" }},
	{"dense_calls", 0, true, func(c *workerv1.Certificate) { c.DenseCalls = 1 }},
	{"second_pass_compiles", 0, true, func(c *workerv1.Certificate) { c.SecondPassCompiles = 1 }},
	{"attention", 0, true, func(c *workerv1.Certificate) { c.Attention = "sdpa" }},
	{"attention_calls", 0, true, func(c *workerv1.Certificate) { c.AttentionCalls-- }},
	{"gradients", 0, true, func(c *workerv1.Certificate) { c.Gradients = !c.Gradients }},
	{"padded_anchors", 0, true, func(c *workerv1.Certificate) { c.PaddedAnchors = !c.PaddedAnchors }},
	{"dense_difference", 0, true, func(c *workerv1.Certificate) { c.DenseDifference = 0.06 }},
	{"gradients", 0, false, func(c *workerv1.Certificate) { c.Gradients = !c.Gradients }},
	{"padded_anchors", 0, false, func(c *workerv1.Certificate) { c.PaddedAnchors = !c.PaddedAnchors }},
}

func TestCertificate(t *testing.T) {
	for _, role := range []workerv1.Role{workerv1.Role_ROLE_TARGET, workerv1.Role_ROLE_DRAFTER} {
		for _, flex := range []bool{false, true} {
			cfg := workertest.Configuration(role, 0, 1)
			good := workertest.Certificate(cfg, "cpu")
			if flex {
				cfg.Attention = "flex"
				flexed(good)
			}
			kept, err := worker.Check(good, cfg, "cpu")
			if err != nil || kept.Fingerprint != good.Fingerprint || kept.StepMS != good.StepMs || len(kept.Buckets) != 2 {
				t.Fatalf("%v flex %v: %v: %+v", role, flex, err, kept)
			}
			for _, f := range falsify {
				if f.flex != flex || f.role != 0 && f.role != role {
					continue
				}
				bad := proto.Clone(good).(*workerv1.Certificate)
				f.change(bad)
				if _, err := worker.Check(bad, cfg, "cpu"); err == nil || !strings.Contains(err.Error(), "check certificate: "+f.field) {
					t.Errorf("%v flex %v: false %s: %v", role, flex, f.field, err)
				}
			}
		}
	}
}

// TestEveryFieldIsChecked: a field that is added to the schema must be falsified
// here too.
func TestEveryFieldIsChecked(t *testing.T) {
	fields := (&workerv1.Certificate{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name, found := string(fields.Get(i).Name()), false
		for _, f := range falsify {
			found = found || f.field == name
		}
		if !found {
			t.Errorf("no test falsifies %s", name)
		}
	}
}

func TestCertificateAgainstConfiguration(t *testing.T) {
	for name, change := range map[string]func(*workerv1.Configuration){
		"role":        func(c *workerv1.Configuration) { c.Role = 0 },
		"layers":      func(c *workerv1.Configuration) { c.Drafter.Layers = 3 },
		"dtype":       func(c *workerv1.Configuration) { c.Training.ComputeDtype = "float16" },
		"attention":   func(c *workerv1.Configuration) { c.Attention = "dense" },
		"no training": func(c *workerv1.Configuration) { c.Training = nil },
	} {
		cfg := workertest.Configuration(workerv1.Role_ROLE_DRAFTER, 0, 1)
		c := workertest.Certificate(cfg, "cpu")
		change(cfg)
		if _, err := worker.Check(c, cfg, "cpu"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := worker.Check(nil, workertest.Configuration(2, 0, 1), "cpu"); err == nil {
		t.Error("no certificate: accepted")
	}
}
